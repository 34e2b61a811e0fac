"""Requests that name a preset: what they leave unsaid, the preset says."""

from msgspec.structs import replace

from corral.backend import presets
from corral.backend.api.generation import GenerationBody
from corral.backend.api.presets import settings_of
from corral.backend.api.serving import n_vocab
from corral.backend.api.wire import AnyRequest
from corral.backend.chat.types import ChatRequest, CompletionRequest, Params
from corral.backend.errors import Refused
from corral.backend.presets import PresetSettings


async def chat(request: AnyRequest, body: GenerationBody, asked: ChatRequest) -> ChatRequest:
    """A conversation with what its preset adds: settings, a system message where it has none, and
    the beginning of the answer where the model's turn comes. Raises ``Refused``."""
    preset = await _preset(request, body)
    if preset is None:
        return asked
    return presets.applied(asked, preset, n_vocab(request), names_form=body.names_form)


async def text(
    request: AnyRequest, body: GenerationBody, asked: CompletionRequest
) -> CompletionRequest:
    """Raw prompts with the settings of their preset. Raises ``Refused``."""
    return replace(asked, params=await params(request, body, asked.params))


async def params(request: AnyRequest, body: GenerationBody, asked: Params) -> Params:
    """Settings with those of a preset. Raises ``Refused``."""
    preset = await _preset(request, body)
    if preset is None:
        return asked
    return presets.settled(asked, preset, n_vocab(request), names_form=body.names_form)


async def _preset(request: AnyRequest, body: GenerationBody) -> PresetSettings | None:
    if body.preset is None:
        return None
    try:
        return await settings_of(request, body.preset)
    except Refused as error:
        raise Refused(f"preset: {error.message}", param="preset") from None
