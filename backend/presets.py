"""Presets: what one says, what it makes of a request, and those that come with the server.

A door (the API, the pages) looks up the preset that was named, and has it applied here.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from corral.backend import defaults
from corral.backend.answer_settings import AnswerSettings
from corral.backend.chat.types import ChatRequest, Message, Params
from corral.backend.errors import Refused
from corral.backend.store import Preset

MAX_NAME = 64
# A developer's word is the system's in every template that knows only one of them.
_SYSTEM = ("system", "developer")

_ROLEPLAY = (
    "You play the character that the user describes, and stay in that role. Write what the"
    " character says and does, never what the user's own character says, thinks or does."
)
_JSON = (
    "Take the facts that are asked for from the user's text. Answer with one JSON object and"
    " nothing else. What the text does not say is null; make nothing up."
)
_CODE = (
    "You are an experienced programmer. Give complete code that runs, in a fenced block that"
    " names its language, and then no more than a few sentences about it."
)

# Those that come with the server, as a person could have written them.
_BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "precise": {"temperature": 0.3, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "balanced": {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    # Far down the list of words is where the surprises are; min_p alone cuts what makes no sense.
    "creative": {"temperature": 1.1, "top_k": 0, "top_p": 1.0, "min_p": 0.05},
    "deterministic": {"temperature": 0.0, "seed": 0},
    "concise": {
        "temperature": 0.5,
        "system": "Answer in as few words as will do. No introduction, no summary.",
    },
    "code": {"temperature": 0.2, "top_p": 0.95, "repeat_penalty": 1.0, "system": _CODE},
    "json": {"temperature": 0.0, "response_format": {"type": "json_object"}, "system": _JSON},
    # DRY keeps long scenes from going round in circles.
    "roleplay": {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.08,
        "dry_multiplier": 0.8,
        "dry_penalty_last_n": -1,
        "system": _ROLEPLAY,
    },
}


class PresetSettings(AnswerSettings, kw_only=True, omit_defaults=True):
    """What a preset says; ``null`` is as good as absent. ``system`` and ``prefix`` are of use in
    chats only."""

    system: Annotated[
        Annotated[str, Meta(max_length=2**18)] | None,
        Meta(description="a system message, where the conversation has none"),
    ] = None
    prefix: Annotated[
        Annotated[str, Meta(max_length=2**14)] | None,
        Meta(description="how the answer begins; it is not repeated in the reply"),
    ] = None


class PresetObject(PresetSettings, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A preset with its name: a reply, a file, and what ``PUT /presets/{name}`` takes, so that one
    can be sent back changed. The name in the path counts, also for a copy of another."""

    name: str | None = None
    version: Annotated[
        Annotated[int, Meta(ge=0, le=2**53)] | None,
        Meta(description="the one this was made from; 0: there must be none yet"),
    ] = None
    is_builtin: bool | None = None
    updated: Annotated[int | None, Meta(description="Unix seconds")] = None

    def settings(self) -> PresetSettings:
        """What is kept of it."""
        names = PresetSettings.__struct_fields__
        return PresetSettings(**{name: getattr(self, name) for name in names})


def shown(name: str, settings: PresetSettings, preset: Preset | None = None) -> PresetObject:
    """One that comes with the server, or that is kept as ``preset``, as it travels."""
    return PresetObject(
        **msgspec.structs.asdict(settings),
        name=name,
        version=0 if preset is None else preset.version,
        is_builtin=preset is None,
        updated=None if preset is None else int(preset.updated_s),
    )


#: Those that come with the server, by name. They cannot be changed; see ``docs/presets.md`` for
#: what each is for.
BUILT_INS = {name: msgspec.convert(body, PresetSettings) for name, body in _BUILT_IN.items()}
preset_decoder = msgspec.json.Decoder(PresetObject)
_kept_decoder = msgspec.json.Decoder(PresetSettings)


def kept(body: bytes) -> PresetSettings:
    """A preset as it was stored; members of another version of Corral are left out."""
    return _kept_decoder.decode(body)


def check_name(name: str) -> None:
    """Raises ``Refused`` for what cannot be the name of a preset."""
    is_fit = 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    if not is_fit or "/" in name or not name.strip("."):
        message = f"expected 1 to {MAX_NAME} printable characters without / and spaces around them"
        raise Refused(f"name: {message}", param="name")


def refuse_built_in(name: str) -> None:
    """Raises ``Refused`` forbidden for the name of one that stays as it is."""
    if name in BUILT_INS:
        message = f"{name!r} comes with the server and stays as it is; use another name for a copy"
        raise Refused(f"name: {message}", kind="forbidden", param="name")


def settled(
    asked: Params, preset: PresetSettings, n_vocab: int, *, names_form: bool = False
) -> Params:
    """A request's settings, and where it says nothing its preset's. ``names_form``: it says what
    the answer must look like, be it anything. Raises ``Refused`` naming the preset's member."""
    try:
        theirs = preset.params(n_vocab)
    except Refused as error:  # a token id that this model does not have
        param = f"preset.{error.param}" if error.param else "preset"
        raise Refused(f"preset.{error.message}", kind=error.kind, param=param) from None
    if names_form:
        theirs = replace(theirs, constraint=None, constraint_at=None)
    elif theirs.constraint is not None:
        theirs = replace(theirs, constraint_at=f"preset.{theirs.constraint_at}")
    return defaults.settled(asked, theirs)


def begun(asked: ChatRequest, said: PresetSettings) -> ChatRequest:
    """A conversation with a system message where it has none, and the beginning of the answer
    where the model's turn comes."""
    messages = list(asked.messages)
    places = [asked.place(i) for i in range(len(messages))]
    begins = said.prefix and _is_models_turn(asked)
    if said.system and not any(message.role in _SYSTEM for message in messages):
        messages.insert(0, Message(role="system", content=said.system))
        places.insert(0, "preset.system")
    if begins:
        messages.append(Message(role="assistant", content=said.prefix))
        places.append("preset.prefix")
        asked = replace(asked, continue_final=True)
    return replace(asked, messages=tuple(messages), places=tuple(places))


def applied(
    asked: ChatRequest, preset: PresetSettings, n_vocab: int, *, names_form: bool = False
) -> ChatRequest:
    """A conversation with what its preset adds, see ``settled`` and ``begun``. Raises
    ``Refused``."""
    params = settled(asked.params, preset, n_vocab, names_form=names_form)
    return begun(replace(asked, params=params), preset)


def _is_models_turn(asked: ChatRequest) -> bool:
    """Whether the answer is a new message, after somebody else's."""
    if not asked.messages or not asked.add_generation_prompt or asked.continue_final:
        return False
    return asked.messages[-1].role in ("user", "tool")
