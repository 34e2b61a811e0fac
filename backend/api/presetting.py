"""Requests that name a preset: what they leave unsaid, the preset says."""

from msgspec.structs import replace

from corral.backend import defaults
from corral.backend.api.generation import GenerationBody
from corral.backend.api.presets import settings_of
from corral.backend.api.presets_schema import PresetSettings
from corral.backend.api.serving import n_vocab
from corral.backend.api.wire import AnyRequest
from corral.backend.chat.types import ChatRequest, CompletionRequest, Message, Params
from corral.backend.errors import Refused

# A developer's word is the system's in every template that knows only one of them.
_SYSTEM = ("system", "developer")


async def chat(request: AnyRequest, body: GenerationBody, asked: ChatRequest) -> ChatRequest:
    """A conversation with what its preset adds: settings, a system message where it has none, and
    the beginning of the answer where the model's turn comes. Raises ``Refused``."""
    preset = await _preset(request, body)
    if preset is None:
        return asked
    params = _settled(body, asked.params, preset, n_vocab(request))
    messages = list(asked.messages)
    begins = preset.prefix and _is_models_turn(asked)
    if preset.system and not any(message.role in _SYSTEM for message in messages):
        messages.insert(0, Message(role="system", content=preset.system))
    if not begins:
        return replace(asked, params=params, messages=tuple(messages))
    messages.append(Message(role="assistant", content=preset.prefix))
    return replace(asked, params=params, messages=tuple(messages), continue_final=True)


async def text(
    request: AnyRequest, body: GenerationBody, asked: CompletionRequest
) -> CompletionRequest:
    """Raw prompts with the settings of their preset. Raises ``Refused``."""
    return replace(asked, params=await params(request, body, asked.params))


async def params(request: AnyRequest, body: GenerationBody, asked: Params) -> Params:
    """Settings with those of a preset. Raises ``Refused``."""
    preset = await _preset(request, body)
    return asked if preset is None else _settled(body, asked, preset, n_vocab(request))


async def _preset(request: AnyRequest, body: GenerationBody) -> PresetSettings | None:
    if body.preset is None:
        return None
    try:
        return await settings_of(request, body.preset)
    except Refused as error:
        raise Refused(f"preset: {error.message}", param="preset") from None


def _settled(body: GenerationBody, asked: Params, preset: PresetSettings, size: int) -> Params:
    try:
        theirs = preset.params(size)
    except Refused as error:  # a token id that this model does not have
        param = f"preset.{error.param}" if error.param else "preset"
        raise Refused(f"preset.{error.message}", kind=error.kind, param=param) from None
    if body.names_form:
        theirs = replace(theirs, constraint=None, constraint_at=None)
    elif theirs.constraint is not None:
        theirs = replace(theirs, constraint_at=f"preset.{theirs.constraint_at}")
    return defaults.settled(asked, theirs)


def _is_models_turn(asked: ChatRequest) -> bool:
    """Whether the answer is a new message, after somebody else's."""
    if not asked.messages or not asked.add_generation_prompt or asked.continue_final:
        return False
    return asked.messages[-1].role in ("user", "tool")
