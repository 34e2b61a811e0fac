"""The settings of a conversation: a preset, and what the chat itself says in place of it.

Only what somebody has set goes into a request. What is left unsaid, the server fills in as for
everybody else.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from corral.backend import presets
from corral.backend.answer_settings import ANY_VOCABULARY, FORMS, LIMITS, Count
from corral.backend.chat.types import ChatRequest
from corral.backend.errors import Refused
from corral.backend.presets import BUILT_INS, PresetSettings, kept
from corral.frontend.site import Site
from corral.frontend.words import _

Budget = Annotated[Count | None, Meta(description="most tokens of reasoning; -1: no limit")]


class Own(PresetSettings, kw_only=True, omit_defaults=True):
    """What one chat sets. An empty ``system``, ``prefix`` or ``stop`` means none, also where the
    preset has one; ``None`` means that the preset's counts, or the server's."""

    preset: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: Budget = None


class Tuning(Struct, frozen=True, kw_only=True):
    """The settings in force in a chat: its own, and the preset they name, as it is now."""

    own: Own = msgspec.field(default_factory=Own)
    preset: PresetSettings | None = None
    n_vocab: int = ANY_VOCABULARY

    def applied(self, request: ChatRequest) -> ChatRequest:
        """A request with these settings; the same way as an API request that names a preset.
        Raises Refused naming the field."""
        own, preset = self.own, self.preset
        variables = {} if own.enable_thinking is None else {"enable_thinking": own.enable_thinking}
        request = replace(
            request,
            params=own.params(self.n_vocab),
            template_kwargs=variables,
            thinking_budget=own.thinking_budget,
        )
        request = presets.begun(request, own)
        if preset is None:
            return request
        if own.system is not None:
            preset = replace(preset, system=None)
        if own.prefix is not None:
            preset = replace(preset, prefix=None)
        return presets.applied(request, preset, self.n_vocab, names_form=own.names_form)

    def merged(self) -> PresetSettings:
        """The preset that these settings come to."""
        own, names = self.own, PresetSettings.__struct_fields__
        said = {name: getattr(own, name) for name in names}
        if self.preset is None:
            return PresetSettings(**said)
        alone = [(name,) for name in names if name not in (*FORMS, *LIMITS)]
        for group in (FORMS, LIMITS, *alone):
            if all(said[name] is None for name in group):
                said |= {name: getattr(self.preset, name) for name in group}
        return PresetSettings(**said)


_decoder = msgspec.json.Decoder(Own)
encode = msgspec.json.Encoder().encode


def read(body: bytes) -> Own:
    """Settings as they were stored."""
    return _decoder.decode(body)


async def in_force(site: Site, own: Own) -> Tuning:
    """Settings with the preset they name looked up. Raises Refused when it is gone, and naming the
    field when they cannot be."""
    info = site.service.info
    preset = None if own.preset is None else await preset_of(site, own.preset)
    made = Tuning(own=own, preset=preset, n_vocab=ANY_VOCABULARY if info is None else info.n_vocab)
    made.applied(ChatRequest(messages=()))
    return made


async def of(site: Site, conversation_id: str | None, own: Own | None = None) -> Tuning:
    """The settings in force in a conversation, ``own`` of one that is not there yet. Raises
    Refused."""
    if conversation_id is None:
        return await in_force(site, own or Own())
    return await in_force(site, read((await site.store.tuning(conversation_id)).body))


async def preset_of(site: Site, name: str) -> PresetSettings:
    """What a preset says. Raises Refused in words for a person."""
    if name in BUILT_INS:
        return BUILT_INS[name]
    try:
        return kept((await site.presets.get(name)).body)
    except Refused:
        words = _("There is no preset {name} any more. Choose another in this chat's settings.")
        raise Refused(words.format(name=f"“{name}”"), param="preset") from None
