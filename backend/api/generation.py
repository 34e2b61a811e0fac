"""What every generating route takes, whichever API it belongs to: one struct, parsed once."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from corral.backend.answer_settings import (
    AnswerSettings,
    Count,
    Natural,
    Penalty,
    agreed,
    agreement,
)
from corral.backend.api import unbuilt
from corral.backend.chat.types import Params
from corral.backend.errors import Refused

# Other APIs' bodies take these from here.
unsupported = unbuilt.unsupported

#: Most answers to one prompt, and the most likely tokens shown in place of each.
MAX_CHOICES, MAX_LOGPROBS = 128, 1000

NChoices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
NLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]


class StreamOptions(Struct):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = None


class LoraScale(Struct, frozen=True, kw_only=True):
    """An adapter, by its number in ``GET /lora-adapters``, and how much of it."""

    id: Natural
    scale: Penalty


class GenerationBody(AnswerSettings, kw_only=True):
    """Members of every generating route; ``null`` is as good as absent: the server's default."""

    #: Whether there is a conversation, and tools to be called in it.
    is_chat: ClassVar[bool] = False

    preset: Annotated[
        str | None, Meta(description="the settings that this request leaves unsaid, by their name")
    ] = None

    # How the answer is shown.
    stream: Annotated[bool | None, Meta(description="answer as server-sent events")] = None
    stream_options: StreamOptions | None = None
    sse_ping_interval: Annotated[
        Count | None, Meta(description="seconds of silence before a comment line; -1: none")
    ] = None
    timings_per_token: Annotated[bool | None, Meta(description="timings on every chunk")] = None
    return_progress: Annotated[bool | None, Meta(description="prompt_progress chunks")] = None
    n_probs: Annotated[
        NLogprobs | None, Meta(description="the likeliest tokens in place of each chosen one")
    ] = None
    logprobs: bool | NLogprobs | None = None
    top_logprobs: NLogprobs | None = None
    post_sampling_probs: Annotated[
        bool | None, Meta(description="probabilities as the samplers left them")
    ] = None

    # How many answers there are.
    n: Annotated[NChoices | None, Meta(description="answers to each prompt")] = None
    n_cmpl: Annotated[NChoices | None, Meta(description="as n")] = None

    # Where it is computed.
    cache_prompt: bool | None = None
    id_slot: Annotated[Count | None, Meta(description="-1: any")] = None
    lora: Annotated[list[LoraScale], Meta(max_length=64)] | None = None
    backend_sampling: Annotated[bool | None, Meta(description="taken, changes nothing")] = None

    # OpenAI's bookkeeping: taken, changes nothing.
    user: str | None = None
    store: bool | None = None
    metadata: Metadata | None = None

    # What may be called; of use in chats only.
    tools: list[Any] | None = None
    functions: Annotated[list[Any] | None, Meta(description="OpenAI's old form of tools")] = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None

    # Known, but not built: anything but "off" is refused (``unbuilt.refuse``).
    image_data: list[Any] | None = None

    def params(self, n_vocab: int) -> Params:
        """The settings asked for. Raises ``Refused`` for what is not built or contradictory."""
        unbuilt.refuse(self)
        if not self.is_chat:
            unbuilt.refuse_tools(self)
        top = self.n_top
        return replace(
            AnswerSettings.params(self, n_vocab),
            n_probs=None if top is None else max(top, 1),
            post_sampling_probs=self.post_sampling_probs,
            cache_prompt=self.cache_prompt,
            id_slot=self.id_slot,
            lora=None if self.lora is None else _lora(self.lora),
        )

    @property
    def n_choices(self) -> int:
        """Answers to each prompt. Raises ``Refused`` for names that contradict each other."""
        return agreed(self, "n", "n_cmpl") or 1

    @property
    def n_top(self) -> int | None:
        """How many tokens to show in place of each chosen one, 0 for that alone; None when no
        probabilities are asked for. Raises ``Refused`` for a contradiction."""
        if isinstance(self.logprobs, bool) or self.logprobs is None:
            counts = {"n_probs": self.n_probs or None, "top_logprobs": self.top_logprobs}
            if self.logprobs:
                return agreement(counts) or 0
            if self.top_logprobs:
                raise Refused("top_logprobs needs logprobs to be true", param="top_logprobs")
            return self.n_probs or None
        names = ("n_probs", "logprobs", "top_logprobs")
        return agreement({n: getattr(self, n) or None for n in names})


def _lora(given: list[LoraScale]) -> tuple[tuple[int, float], ...]:
    seen: set[int] = set()
    for i, lora in enumerate(given):
        if lora.id in seen:
            raise Refused(f"lora[{i}].id: {lora.id} is named twice", param=f"lora[{i}].id")
        seen.add(lora.id)
    return tuple((lora.id, lora.scale) for lora in given)
