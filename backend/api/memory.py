"""What the engine remembers: LoRA adapters in force, and slots that are saved, restored, erased."""

import re
from typing import Annotated, Any, Literal

import msgspec
from litestar import HttpMethod, Response, post, route
from litestar.params import FromPath
from msgspec import Meta, Struct

from corral.backend.api.generation import LoraScale
from corral.backend.api.openapi import WITH_BODY, Operation, Parameter
from corral.backend.api.serving import service_of
from corral.backend.api.wire import AnyRequest, read, reply
from corral.backend.errors import Refused

_TAG = "llama-server"
_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_ACTIONS = ("save", "restore", "erase")


class LoraAdapter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An adapter and its scale in force. With ``alora_invocation_*`` it was trained to act only
    behind those tokens."""

    id: int
    path: str
    scale: Annotated[float, Meta(description="0: not applied")]
    task_name: str
    prompt_prefix: str
    alora_invocation_string: str = ""
    alora_invocation_tokens: list[int] = []


class Success(Struct, frozen=True):
    """It is done."""

    success: Literal[True] = True


class SlotFile(Struct, kw_only=True):
    """The body of ``POST /slots/{id_slot}``; to erase a slot it takes none."""

    filename: Annotated[
        str | None, Meta(description="a bare name, in the folder of --slot-save-path")
    ] = None


class SlotTimings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long it took, waiting for the slot not included."""

    save_ms: float = 0.0
    restore_ms: float = 0.0


class SlotDone(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done: ``n_saved`` tokens and ``n_written`` bytes, ``n_restored`` tokens and
    ``n_read`` bytes, or ``n_erased`` tokens."""

    id_slot: Annotated[int, Meta(ge=0)]
    filename: str = ""
    n_saved: int = 0
    n_written: int = 0
    n_restored: int = 0
    n_read: int = 0
    n_erased: int | None = None
    timings: SlotTimings | None = None


_scales_decoder = msgspec.json.Decoder(list[LoraScale])
_slot_decoder = msgspec.json.Decoder(SlotFile)


@route(
    "/lora-adapters",
    http_method=_LOOK,
    status_code=200,
    operation=Operation(
        summary="LoRA adapters, and their scales in force",
        tag=_TAG,
        reply=list[LoraAdapter],
        errors=(401, 503),
    ),
)
async def lora_adapters(request: AnyRequest) -> Response[bytes]:
    """The adapters that were loaded, numbered in order."""
    service = service_of(request)
    rows = await service.memory("lora", {})
    found = []
    for row in rows:
        tokens = row.pop("invocation_tokens")
        text = await service.detokenize(tokens) if tokens else ""
        found.append(
            LoraAdapter(**row, alora_invocation_string=text, alora_invocation_tokens=tokens)
        )
    return reply(found)


@post(
    "/lora-adapters",
    status_code=200,
    operation=Operation(
        summary="Set the scales of LoRA adapters",
        tag=_TAG,
        body=list[LoraScale],
        reply=Success,
        errors=WITH_BODY,
    ),
)
async def set_lora_adapters(request: AnyRequest) -> Response[bytes]:
    """Scales for requests that name none, from the next one on; those not listed become 0."""
    scales = await read(request, _scales_decoder)
    args = {"scales": [(lora.id, lora.scale) for lora in scales]}
    await service_of(request).memory("set_lora", args)
    return reply(Success())


@post(
    "/slots/{id_slot:str}",
    status_code=200,
    operation=Operation(
        summary="Save, restore or erase what a slot holds",
        tag=_TAG,
        body=SlotFile,
        reply=SlotDone,
        parameters=(
            Parameter(name="id_slot", where="path", help="its number"),
            Parameter(name="action", where="query", help="save, restore or erase"),
        ),
        errors=(*WITH_BODY, 501),
    ),
)
async def slot_action(request: AnyRequest, id_slot: FromPath[str]) -> Response[bytes]:
    """What was last computed in a slot, to a file and back. A busy slot is waited for."""
    action = request.query_params.get("action", "")
    if action not in _ACTIONS:
        raise Refused("action must be save, restore or erase", param="action")
    if not re.fullmatch(r"[0-9]{1,9}", id_slot, re.ASCII):
        raise Refused("id_slot must be the number of a slot", param="id_slot")
    slot, name = int(id_slot), ""
    if action != "erase":
        body = await read(request, _slot_decoder)
        if body.filename is None:
            raise Refused("filename is required", param="filename")
        name = body.filename
    args = {"slot": slot, "filename": name}
    done = await service_of(request).memory(f"slot_{action}", args)
    return reply(_shown(action, slot, name, done))


def _shown(action: str, slot: int, name: str, done: dict[str, Any]) -> SlotDone:
    ms = round(done.pop("ms", 0.0), 3)
    if action == "erase":
        return SlotDone(id_slot=slot, **done)
    timings = SlotTimings(save_ms=ms) if action == "save" else SlotTimings(restore_ms=ms)
    return SlotDone(id_slot=slot, filename=name, timings=timings, **done)


handlers = [lora_adapters, set_lora_adapters, slot_action]
