"""From events and snapshots to llama-server's own shapes. Pure functions."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from corral.backend import __version__
from corral.backend.api.answer import Answer, Shown, Wishes
from corral.backend.api.native_schema import (
    DefaultSettings,
    LoraShown,
    Modalities,
    NextToken,
    Piece,
    PromptToken,
    Props,
    Settings,
    Slot,
    TemplateCaps,
    TokenPiece,
    Whole,
)
from corral.backend.api.probs import for_native
from corral.backend.api.timings import wire_progress, wire_timings
from corral.backend.api.wire import error_object
from corral.backend.chat.capabilities import Capabilities
from corral.backend.chat.media import MARKER
from corral.backend.chat.types import Effective, Event, Finished, Reading, Scored, Text
from corral.backend.engine.messages import (
    Constraint,
    FinishKind,
    ModelInfo,
    Sampling,
    Snapshot,
    Written,
)
from corral.backend.errors import CorralError

_SAMPLING = Sampling.__struct_fields__
_STOP_TYPE: dict[FinishKind, str] = {
    "eos": "eos",
    "limit": "limit",
    "word": "word",
    "cancelled": "none",
}


def settings(effective: Effective, *, seed: int, stream: bool) -> Settings:
    """``generation_settings``; ``seed`` is the one that was used."""
    e, s = effective, effective.sampling
    same = {
        name: getattr(s if name in _SAMPLING else e, name)
        for name in Settings.__struct_fields__
        if name in _SAMPLING or name in Effective.__struct_fields__
    }
    return Settings(
        **same
        | {
            "seed": seed,
            "dry_sequence_breakers": list(s.dry_sequence_breakers),
            "samplers": list(s.samplers),
            "logit_bias": [(t, bias if math.isfinite(bias) else None) for t, bias in s.logit_bias],
            "stop": list(e.stop),
            "n_predict": e.max_tokens,
            "lora": [LoraShown(id=id, scale=scale) for id, scale in e.lora or ()],
            "stream": stream,
        },
        **_constraint(e.constraint),
    )


def _constraint(constraint: Constraint | None) -> dict[str, Any]:
    match constraint:
        case Constraint(kind="json_schema", source=source):
            return {"json_schema": msgspec.Raw(source.encode())}
        case Constraint(kind="gbnf", source=source):
            return {"grammar": source}
        case Constraint(kind=kind, source=source):
            return {kind: source}
        case None:
            return {}


class Asked(Protocol):
    """What of a generation is shown here; see ``choices.Generation``."""

    effective: Effective
    n_prompt: int
    slot: int


class NativeRender(Struct, frozen=True, kw_only=True):
    """Completions in llama-server's own shape. ``prompts`` are shown in whole replies;
    ``generations`` are asked what they know by now. ``fields``: the members of whole replies to
    show, all when there are none."""

    model: str
    prompts: Sequence[str]
    generations: Sequence[Asked]
    wishes: Wishes
    stream: bool
    return_tokens: bool = False
    fields: Sequence[str] = ()
    says_done: bool = False
    names_events: bool = False

    def opening(self) -> list[Shown]:
        """Nothing: the first chunk is the first piece."""
        return []

    def chunks(self, event: Event, answer: Answer) -> list[Shown]:
        """An event's chunks; see ``Render``."""
        match event:
            case Reading():
                return [self._reading(event, answer.index)] if self.wishes.progress else []
            case Text():
                return [self._piece(event, answer.index)]
            case Finished():
                return [self._shown(self._whole("", [], answer))]
            case Scored():
                return []

    def closing(self, answers: Sequence[Answer]) -> list[Shown]:
        """Nothing: an answer's last chunk says all."""
        return []

    def reply(self, answers: Sequence[Answer]) -> Shown | list[Shown]:
        """The whole completion, a list of them when there are several; see ``Render``."""
        shape = self.wishes.probs
        wholes = []
        for a in answers:
            whole = self._whole(a.text, a.tokens if self.return_tokens else [], a)
            if shape is not None:
                whole = replace(whole, completion_probabilities=for_native(a.probs, shape))
            wholes.append(self._shown(whole))
        return wholes if len(wholes) > 1 else wholes[0]

    def _shown(self, whole: Whole) -> Shown:
        return projected(msgspec.to_builtins(whole), self.fields) if self.fields else whole

    def failure(self, error: CorralError) -> Shown:
        """An error event; see ``Render``."""
        return error_object(error)

    def _reading(self, event: Reading, index: int) -> Piece:
        return Piece(
            index=index,
            content="",
            tokens=[],
            id_slot=self.generations[index].slot,
            tokens_predicted=0,
            tokens_evaluated=event.total,
            prompt_progress=wire_progress(event),
        )

    def _piece(self, event: Text, index: int) -> Piece:
        generation, shape = self.generations[index], self.wishes.probs
        return Piece(
            index=index,
            content=event.text,
            tokens=event.tokens,
            id_slot=generation.slot,
            tokens_predicted=event.timings.n_generated,
            tokens_evaluated=generation.n_prompt,
            completion_probabilities=for_native(event.probs, shape) if shape else UNSET,
            timings=wire_timings(event.timings) if self.wishes.timings else UNSET,
        )

    def _whole(self, text: str, tokens: list[int], answer: Answer) -> Whole:
        end, generation = answer.last, self.generations[answer.index]
        t = end.timings
        return Whole(
            index=answer.index,
            content=text,
            tokens=tokens,
            id_slot=end.slot,
            model=self.model,
            tokens_predicted=t.n_generated,
            tokens_evaluated=generation.n_prompt,
            generation_settings=settings(generation.effective, seed=end.seed, stream=self.stream),
            prompt=self.prompts[answer.prompt_index],
            has_new_line=answer.has_new_line,
            truncated=end.truncated,
            stop_type=_STOP_TYPE[end.finish],
            stopping_word=end.stopping_word,
            # The last token was chosen but never computed.
            tokens_cached=generation.n_prompt + max(t.n_generated - 1, 0),
            timings=wire_timings(t),
        )


def projected(whole: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The members of ``whole`` that ``fields`` name; ``a/b`` is member b of a, under that name.
    What is not there is left out."""
    found: dict[str, Any] = {}
    for field in fields:
        value: Any = whole
        for key in field.split("/"):
            value = value.get(key, UNSET) if isinstance(value, dict) else UNSET
        if value is not UNSET:
            found[field] = value
    return found


def token_pieces(tokens: list[int], pieces: list[bytes]) -> list[TokenPiece]:
    """Each token with its text; half a character is shown as its bytes."""
    return [TokenPiece(token, _text(piece)) for token, piece in zip(tokens, pieces, strict=True)]


def prompt_tokens(prompt: Written, tokens: list[int], pieces: list[bytes]) -> list[PromptToken]:
    """A prompt's tokens, and whether the characters they stand for are the client's. Those of
    pictures and sounds are negative; ``pieces`` are of the others only."""
    texts = iter(_text_tokens(prompt, [token for token in tokens if token >= 0], pieces))
    found = list[PromptToken]()
    for is_media, run in itertools.groupby(tokens, lambda token: token < 0):
        n = len(list(run))
        if is_media:
            found.append(PromptToken(-1, MARKER, True, n))
        else:
            found += itertools.islice(texts, n)
    return found


def _text_tokens(prompt: Written, tokens: list[int], pieces: list[bytes]) -> list[PromptToken]:
    data, whose, at = bytearray(), bytearray(), 0
    for start, end in (*prompt.foreign, (len(prompt.text), len(prompt.text))):
        own, theirs = prompt.text[at:start].encode(), prompt.text[start:end].encode()
        data += own + theirs
        whose += bytes(len(own)) + b"\x01" * len(theirs)
        at = end
    found, at = [], 0
    for token, piece in zip(tokens, pieces, strict=True):
        at, end = _place(data, piece, at)
        found.append(PromptToken(token, _text(piece), 1 in whose[at:end]))
        at = end
    return found


def _place(data: bytearray, piece: bytes, at: int) -> tuple[int, int]:
    """Where a token's text stands; nowhere, when the vocabulary put it there."""
    if data.startswith(piece, at):
        return at, at + len(piece)
    if piece.startswith(b" ") and data.startswith(piece[1:], at):
        return at, at + len(piece) - 1
    # Some tokens take the white space around them with them.
    start = len(data) - len(data[at:].lstrip())
    return (start, start + len(piece)) if data.startswith(piece, start) else (at, at)


def _text(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def props(
    info: ModelInfo, defaults: Effective, name: str, template: str, can: Capabilities | None
) -> Props:
    """``GET /props``; ``template`` is the one in force, and ``can`` what it can say."""
    seed = -1 if defaults.sampling.seed is None else defaults.sampling.seed
    params = settings(defaults, seed=seed, stream=True)
    return Props(
        default_generation_settings=DefaultSettings(params=params, n_ctx=info.n_ctx),
        total_slots=info.n_slots,
        model_alias=name,
        model_ftype=info.ftype,
        model_path=info.path,
        modalities=Modalities(vision=info.vision, audio=info.audio),
        chat_template=template,
        chat_template_tool_use=info.chat_template_tool_use or UNSET,
        chat_template_caps=TemplateCaps() if can is None else caps(can),
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        build_info=f"corral-{__version__}",
    )


def caps(can: Capabilities) -> TemplateCaps:
    """``chat_template_caps``."""
    return TemplateCaps(
        supports_system_role=can.system_role,
        supports_developer_role=can.developer_role,
        supports_tools=can.tools,
        supports_tool_calls=can.tool_calls,
        supports_parallel_tool_calls=can.parallel_tool_calls,
        supports_tool_results=can.tool_results,
        supports_preserve_reasoning=can.preserve_reasoning,
        supports_thinking_switch=bool(can.thinking_switch),
        supports_reasoning_effort=can.reasoning_effort,
        supports_string_content=can.string_content,
        supports_typed_content=can.typed_content,
        supports_object_arguments=can.object_arguments,
        supports_string_arguments=can.string_arguments,
    )


def slots(snapshot: Snapshot, n_ctx: int) -> list[Slot]:
    """``GET /slots``: one row a slot. The cache is shared, each may use all of the context."""
    rows = []
    for s in snapshot.slots:
        busy = s.state != "idle"
        left = max(s.max_tokens - s.n_generated, 0) if s.max_tokens >= 0 else -1
        next_token = NextToken(has_next_token=busy, n_remain=left, n_decoded=s.n_generated)
        rows.append(
            Slot(
                id=s.id,
                id_task=s.task,
                n_ctx=n_ctx,
                is_processing=busy,
                state=s.state,
                n_prompt_tokens=s.n_prompt,
                n_prompt_tokens_processed=max(s.n_processed - s.n_cached, 0),
                n_prompt_tokens_cache=s.n_cached,
                n_decoded=s.n_generated,
                tokens_per_second=s.tokens_per_second,
                next_token=[next_token],
            )
        )
    return rows
