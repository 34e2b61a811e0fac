"""Use cases: a request becomes a running generation whose events any renderer can show."""

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from corral.backend import pool as pools
from corral.backend.attachments import Attachments
from corral.backend.chat.capabilities import Capabilities
from corral.backend.chat.media import shown
from corral.backend.chat.model import Prepared, Turn
from corral.backend.chat.trial import Tried
from corral.backend.chat.types import (
    ChatRequest,
    CompletionRequest,
    Effective,
    Media,
    Params,
    Prompt,
    Source,
    Written,
)
from corral.backend.choices import Choices, Generation
from corral.backend.defaults import effective
from corral.backend.engine.messages import Constraint, ModelInfo, Snapshot, Verdict
from corral.backend.errors import CorralError, Refused
from corral.backend.pool import Engine, Pool
from corral.backend.prompting import Prompting
from corral.backend.settings import Settings
from corral.backend.vectors import EmbedRequest, Vectors, compute

log = logging.getLogger("corral")

#: Seconds that a constraint may take to compile when it is only looked at.
CHECK_S = 10.0

#: Seeds go from 0 to here, not included; llama-server's number after that means "draw one".
_N_SEEDS = 2**32 - 1


class Service:
    """What API and frontend may ask for."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self.settings = settings
        self._pool = pool
        self._prompting = Prompting(settings)
        self._attachments = Attachments(settings)
        #: Answers under way by the name their client knows; whoever runs them keeps them alive.
        self.named: WeakValueDictionary[str, Choices] = WeakValueDictionary()
        self.created = int(time.time())

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to load the model; returns at once."""
        self._pool.start()

    async def until_loaded(self) -> None:
        """Waits for the model. Raises Broken with the reason when it cannot be loaded."""
        await self._pool.engine.until_loaded()

    async def drain(self) -> None:
        """Lets running requests finish, within the drain timeout, and refuses new ones."""
        await self._pool.drain(self.settings.drain_timeout_s)

    async def close(self) -> None:
        """Ends everything."""
        self._attachments.close()
        await self._pool.close()

    # --- use cases --------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> Choices:
        """Starts to answer a conversation; returns once its prompt is tokenised, fits, and is
        queued or running. Raises Refused (the template's objection, too long, queue full) or Broken
        (loading, shutting down)."""
        engine = self._pool.get(request.model)
        self._attachments.check(request.sources, _loaded(engine))
        model, prepared = await self._prompting.prepare(engine, request)
        turn = model.read(request, prepared)
        media = await self._attachments.load(request.sources, _loaded(engine))
        choices = await self._answer(
            [(turn.prompt, media)],
            request.params,
            request.model,
            n=request.n,
            param="messages",
            turn=turn,
        )
        choices.folded = prepared.folded
        return choices

    async def complete(self, request: CompletionRequest) -> Choices:
        """Starts to continue raw prompts; as ``chat``. One bad prompt refuses all of them."""
        sources = request.sources or ((),) * len(request.prompts)
        all_sources = [source for own in sources for source in own]
        loaded = iter(await self.load_media(all_sources, request.model))
        prompts = [
            (prompt, tuple(itertools.islice(loaded, len(own))))
            for prompt, own in zip(request.prompts, sources, strict=True)
        ]
        return await self._answer(
            prompts, request.params, request.model, n=request.n, param="prompt"
        )

    async def embed(self, request: EmbedRequest) -> Vectors:
        """Computes vectors of texts, or scores of documents. Raises Refused, naming the input, or
        Broken."""
        return await compute(self._pool.get(request.model), request)

    async def prepare(self, request: ChatRequest) -> Prepared:
        """The prompt a conversation becomes. Raises as ``chat``."""
        engine = self._pool.get(request.model)
        self._attachments.check(request.sources, _loaded(engine))
        return (await self._prompting.prepare(engine, request))[1]

    async def render(self, request: ChatRequest) -> Written:
        """See ``prepare``."""
        return (await self.prepare(request)).prompt

    async def try_template(self, request: ChatRequest, source: str) -> Tried:
        """The prompt a conversation would become by another template; changes nothing. Raises
        Refused with the template's objection, or Broken."""
        return await self._prompting.try_out(self._pool.get(request.model), source, request)

    async def count(self, request: ChatRequest) -> int:
        """How many tokens a conversation's prompt has. Raises as ``chat``."""
        return len(await self.chat_tokens(request, await self.prepare(request)))

    async def chat_tokens(self, request: ChatRequest, prepared: Prepared) -> list[int]:
        """The tokens of a conversation made ready; those of pictures and sounds are negative.
        Raises as ``chat``."""
        return await self.prompt_tokens(
            prepared.prompt, await self.load_media(request.sources, request.model)
        )

    async def tokenize(
        self, content: str | list[int | str], *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Token ids of a text, or of ids and texts mixed."""
        args = {"content": content, "add_special": add_special, "parse_special": parse_special}
        tokens: list[int] = await self._pool.get(None).call("tokenize", args)
        return tokens

    async def prompt_tokens(
        self, prompt: Prompt | Written, media: tuple[Media, ...] = ()
    ) -> list[int]:
        """The tokens of a prompt as a request would read them."""
        return await _tokens(self._pool.get(None), prompt, media)

    async def as_text(self, prompt: Prompt | Written) -> str:
        """A prompt as text, to be shown, with ``MARKER`` for its pictures and sounds."""
        if isinstance(prompt, str):
            return prompt
        if isinstance(prompt, Written):
            return shown(prompt)
        tokens = await self.tokenize(prompt, add_special=False, parse_special=True)
        return await self.detokenize(tokens)

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """The bytes of each token, special ones by name. Refuses ids outside the vocabulary."""
        args = {"tokens": tokens, "special": True}
        pieces: list[bytes] = await self._pool.get(None).call("pieces", args)
        return pieces

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(await self.pieces(tokens)).decode("utf-8", "replace")

    async def check_constraint(self, constraint: Constraint) -> Verdict:
        """Whether answers could be made to match it; compiled by the engine, beside everything else
        it does. Raises Refused when it takes too long, or Broken."""
        call = self._pool.get(None).call("check_constraint", {"constraint": constraint})
        try:
            async with asyncio.timeout(CHECK_S):
                return msgspec.convert(await call, Verdict)
        except TimeoutError:
            message = f"this takes longer than {CHECK_S:g} seconds to compile"
            raise Refused(message, kind="unsupported") from None

    async def memory(self, method: str, args: dict[str, Any]) -> Any:
        """Asks about LoRA adapters or slots: a method of the engine's ``memory`` and its answer.
        Raises Refused or Broken."""
        return await self._pool.get(None).call(method, args)

    async def control(self, args: dict[str, Any]) -> None:
        """Scripts the fake engine (see ``engine.fake``); refused by a real one."""
        await self._pool.get(None).call("control", args)

    async def end_thinking(self, generation_id: int) -> bool:
        """Lets a running answer's reasoning end now. False when there is none."""
        ended: bool = await self._pool.get(None).call("end_thinking", {"id": generation_id})
        return ended

    async def load_media(
        self, sources: Sequence[Source], model: str | None = None
    ) -> tuple[Media, ...]:
        """What pictures and sounds are. Raises Refused or Broken."""
        if not sources:
            return ()
        return await self._attachments.load(sources, _loaded(self._pool.get(model)))

    async def _answer(
        self,
        prompts: Sequence[tuple[Prompt | Written, tuple[Media, ...]]],
        params: Params,
        model: str | None,
        *,
        n: int,
        param: str,
        turn: Turn | None = None,
    ) -> Choices:
        engine = self._pool.get(model)
        in_force = self.effective(params)
        if len(prompts) * n > 1:
            # The engine checks a prompt when it gets it; here all must be good before any runs.
            prompts = [
                await self._fitting(
                    engine, prompt, media, f"{param}[{i}]" if len(prompts) > 1 else param
                )
                for i, (prompt, media) in enumerate(prompts)
            ]
        generations = [
            Generation(
                engine,
                prompt,
                _choice(in_force, j),
                prompt_index=i,
                joins=i + j > 0,
                turn=turn,
                media=media,
            )
            for i, (prompt, media) in enumerate(prompts)
            for j in range(n)
        ]
        choices = Choices(generations, n_at_once=self.settings.slots)
        try:
            await choices.start()
        except CorralError as error:
            _rename(error, "prompt", param)
            if params.constraint is not None and params.constraint_at is not None:
                for name in ("json_schema", "grammar", "regex", "lark"):
                    _rename(error, name, params.constraint_at)
            raise
        return choices

    async def _fitting(
        self, engine: Engine, prompt: Prompt | Written, media: tuple[Media, ...], at: str
    ) -> tuple[Prompt | Written, tuple[Media, ...]]:
        """A prompt as its tokens, but for one with pictures or sounds. Raises Refused when it is
        empty or can never fit."""
        tokens = await _tokens(engine, prompt, media)
        n, n_ctx = len(tokens), engine.info.n_ctx if engine.info is not None else len(tokens) + 1
        if not tokens:
            raise Refused(f"{at}: the prompt holds no tokens", param=at)
        if n >= n_ctx:
            raise Refused(
                f"{at}: the prompt has {n} tokens; the context holds {n_ctx}, answer included",
                kind="context_length_exceeded",
                param=at,
                extra={"n_prompt_tokens": n, "n_ctx": n_ctx},
            )
        return (prompt if media else list[int | str](tokens)), media

    # --- settings in force ------------------------------------------------------------------------

    def effective(self, params: Params) -> Effective:
        """What a request's settings come to, every default filled in; see ``defaults``."""
        recommended = {} if self.info is None else self.info.sampling
        return effective(params, self.settings, recommended)

    @property
    def defaults(self) -> Effective:
        """The settings of a request that asks for nothing."""
        return self.effective(Params())

    # --- looking in (never waits for the engine) --------------------------------------------------

    @property
    def state(self) -> pools.State:
        """loading, ready, restarting, draining, failed or closed."""
        return self._pool.engine.state

    @property
    def failure(self) -> str:
        """Why the model could not be loaded, or nothing."""
        return self._pool.engine.failure

    @property
    def load_progress(self) -> float:
        """How much of the model is loaded, 0 to 1."""
        return self._pool.engine.load_progress

    @property
    def model_name(self) -> str:
        """What the served model is called."""
        return self._pool.engine.name

    @property
    def info(self) -> ModelInfo | None:
        """The loaded model; None until it is."""
        return self._pool.engine.info

    @property
    def chat_template(self) -> str:
        """The chat template in force, as Jinja; empty until the model is loaded."""
        return "" if self.info is None else self._prompting.source(self.info)

    @property
    def capabilities(self) -> Capabilities | None:
        """What that template can say; None until the model is loaded, or when it is no template."""
        try:
            return self._prompting.model(self._pool.engine).can
        except CorralError:
            return None

    @property
    def can_think(self) -> bool:
        """Whether the model reasons before it answers, in a way that is known here."""
        try:
            return self._prompting.model(self._pool.engine).can_think
        except CorralError:
            return False

    @property
    def snapshot(self) -> Snapshot | None:
        """The engine's state after its last step."""
        return self._pool.engine.snapshot

    def waiting_ahead(self, generation_id: int) -> int | None:
        """Requests before this one in the queue; None when it is not waiting."""
        snapshot = self.snapshot
        if snapshot is None or generation_id not in snapshot.waiting:
            return None
        return snapshot.waiting.index(generation_id)


def _loaded(engine: Engine) -> ModelInfo:
    """What is known of an engine's model. Raises Refused or Broken while there is none."""
    if engine.info is None:
        raise engine.refusal()
    return engine.info


async def _tokens(engine: Engine, prompt: Prompt | Written, media: tuple[Media, ...]) -> list[int]:
    args = {"prompt": prompt, "media": media} if media else {"prompt": prompt}
    tokens: list[int] = await engine.call("tokenize_prompt", args)
    return tokens


def _choice(effective: Effective, j: int) -> Effective:
    """Choice ``j`` of a prompt: with a seed, each has one of its own, and the first has that."""
    seed = effective.sampling.seed
    if seed is None or j == 0:
        return effective
    sampling = replace(effective.sampling, seed=(seed + j) % _N_SEEDS)
    return replace(effective, sampling=sampling)


def _rename(error: CorralError, name: str, at: str) -> None:
    """Calls the field at fault what it is called at the door it came through. ``name`` is the
    engine's word for it; a path below it is kept, a place in a text is in the message."""
    if error.param is None or not re.match(rf"{name}\b", error.param):
        return
    rest = error.param[len(name) :]
    error.param = at + rest if rest[:1] in (".", "[") else at
    if error.message.startswith(name):
        error.message = at + error.message[len(name) :]
