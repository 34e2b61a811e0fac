"""From events and snapshots to llama-server's own shapes. Pure functions."""

import math
from collections.abc import Callable

from msgspec import UNSET, Struct

from corral.backend import __version__
from corral.backend.api.answer import Answer, Wishes
from corral.backend.api.generation import SAMPLERS
from corral.backend.api.native_schema import (
    DefaultSettings,
    NextToken,
    Piece,
    Props,
    Settings,
    Slot,
    TokenPiece,
    Whole,
)
from corral.backend.api.timings import wire_progress, wire_timings
from corral.backend.chat.types import Effective, Event, Finished, Reading, Text
from corral.backend.engine.messages import FinishKind, ModelInfo, Snapshot

_STOP_TYPE: dict[FinishKind, str] = {
    "eos": "eos",
    "limit": "limit",
    "word": "word",
    "cancelled": "none",
}


def settings(effective: Effective, *, seed: int, stream: bool) -> Settings:
    """``generation_settings``; ``seed`` is the one that was used."""
    s = effective.sampling
    return Settings(
        seed=seed,
        temperature=s.temperature,
        top_k=s.top_k,
        top_p=s.top_p,
        min_p=s.min_p,
        repeat_last_n=s.repeat_last_n,
        repeat_penalty=s.repeat_penalty,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        stop=list(effective.stop),
        max_tokens=effective.max_tokens,
        n_predict=effective.max_tokens,
        ignore_eos=s.ignore_eos,
        cache_prompt=effective.cache_prompt,
        stream=stream,
        logit_bias=[(t, bias if math.isfinite(bias) else None) for t, bias in s.logit_bias],
        samplers=SAMPLERS,
    )


class NativeRender(Struct, frozen=True, kw_only=True):
    """A completion in llama-server's own shape. ``prompt`` is shown in the whole reply;
    ``slot_of`` tells the slot once the request holds one."""

    model: str
    prompt: str
    effective: Effective
    n_prompt: int
    slot_of: Callable[[], int]
    wishes: Wishes
    stream: bool
    return_tokens: bool = False
    says_done: bool = False

    def opening(self) -> list[Struct]:
        """Nothing: the first chunk is the first piece."""
        return []

    def chunks(self, event: Event, answer: Answer) -> list[Struct]:
        """An event's chunks; see ``Render``."""
        match event:
            case Reading():
                return [self._reading(event)] if self.wishes.progress else []
            case Text():
                return [self._piece(event)]
            case Finished():
                return [self._whole("", [], answer, event)]

    def reply(self, answer: Answer, end: Finished) -> Struct:
        """The whole completion; see ``Render``."""
        tokens = answer.tokens if self.return_tokens else []
        return self._whole(answer.text, tokens, answer, end)

    def _reading(self, event: Reading) -> Piece:
        return Piece(
            content="",
            tokens=[],
            id_slot=self.slot_of(),
            tokens_predicted=0,
            tokens_evaluated=event.total,
            prompt_progress=wire_progress(event),
        )

    def _piece(self, event: Text) -> Piece:
        return Piece(
            content=event.text,
            tokens=event.tokens,
            id_slot=self.slot_of(),
            tokens_predicted=event.timings.n_generated,
            tokens_evaluated=self.n_prompt,
            timings=wire_timings(event.timings) if self.wishes.timings else UNSET,
        )

    def _whole(self, text: str, tokens: list[int], answer: Answer, end: Finished) -> Whole:
        t = end.timings
        return Whole(
            content=text,
            tokens=tokens,
            id_slot=end.slot,
            model=self.model,
            tokens_predicted=t.n_generated,
            tokens_evaluated=self.n_prompt,
            generation_settings=settings(self.effective, seed=end.seed, stream=self.stream),
            prompt=self.prompt,
            has_new_line=answer.has_new_line,
            truncated=end.truncated,
            stop_type=_STOP_TYPE[end.finish],
            stopping_word=end.stopping_word,
            # The last token was chosen but never computed.
            tokens_cached=self.n_prompt + max(t.n_generated - 1, 0),
            timings=wire_timings(t),
        )


def token_pieces(tokens: list[int], pieces: list[bytes]) -> list[TokenPiece]:
    """Each token with its text; half a character is shown as its bytes."""
    return [TokenPiece(token, _text(piece)) for token, piece in zip(tokens, pieces, strict=True)]


def _text(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def props(info: ModelInfo, defaults: Effective, name: str) -> Props:
    """``GET /props``."""
    seed = -1 if defaults.sampling.seed is None else defaults.sampling.seed
    params = settings(defaults, seed=seed, stream=True)
    return Props(
        default_generation_settings=DefaultSettings(params=params, n_ctx=info.n_ctx),
        total_slots=info.n_slots,
        model_alias=name,
        model_ftype=info.ftype,
        model_path=info.path,
        chat_template=info.chat_template or "",
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        build_info=f"corral-{__version__}",
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
