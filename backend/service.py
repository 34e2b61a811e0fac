"""Use cases: a request becomes a running generation whose events any renderer can show."""

import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from corral.backend import pool as pools
from corral.backend.chat.template import CHATML, ChatTemplate
from corral.backend.chat.types import (
    ChatRequest,
    CompletionRequest,
    Effective,
    Event,
    Finished,
    Params,
    Reading,
    Text,
    Timings,
)
from corral.backend.engine.messages import (
    Add,
    Delta,
    Done,
    Failed,
    ModelInfo,
    Progress,
    Sampling,
    Snapshot,
    Started,
)
from corral.backend.errors import CorralError, from_engine
from corral.backend.pool import Engine, Pool
from corral.backend.settings import Settings

log = logging.getLogger("corral")


class Generation:
    """A request the engine accepted. Iterate once for its events; the last one is ``Finished``.

    Iterating raises ``CorralError`` when it ends badly. Leaving early without ``abort()`` leaves it
    running, so whoever iterates calls ``abort()`` (synchronous, idempotent) in a ``finally``.
    """

    def __init__(
        self, engine: Engine, request: pools.Request, n_prompt: int, effective: Effective
    ) -> None:
        self.id = request.add.id
        self.model = engine.name
        self.created = int(time.time())
        self.prompt = request.add.prompt
        self.n_prompt = n_prompt
        self.effective = effective
        self.slot = -1
        self._engine = engine
        self._request = request
        self._timings = Timings(n_prompt, 0, 0, 0.0, 0.0)
        self._first_text_s = 0.0

    def abort(self) -> None:
        """Ends it now; the events end in ``Finished(finish="cancelled")``."""
        if not self._request.has_ended:
            self._engine.abort(self.id)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            match await self._request.get():
                case Started(_, slot, _):
                    self.slot = slot
                case Progress(_, total, cached, processed, time_ms):
                    self._timings = Timings(total, cached, 0, time_ms, 0.0)
                    yield Reading(total, cached, processed, time_ms)
                case Delta(_, text, tokens):
                    self._count(len(tokens))
                    yield Text(text, tokens, self._timings)
                case Done(_, finish, word, s):
                    counts = s.n_prompt, s.n_cached, s.n_generated
                    timings = Timings(*counts, s.prompt_ms, s.predicted_ms, s.queue_ms)
                    yield Finished(finish, word, s.truncated, s.seed, s.slot, timings)
                    return
                case Failed(_, code, message, extra):
                    raise from_engine(code, message, extra)

    def _count(self, n_tokens: int) -> None:
        """Times up to now, for those who show them while the answer runs."""
        now, t = time.perf_counter(), self._timings
        if t.n_generated == 0:
            self._first_text_s = now
        ms = (now - self._first_text_s) * 1e3
        self._timings = Timings(t.n_prompt, t.n_cached, t.n_generated + n_tokens, t.prompt_ms, ms)


class Service:
    """What API and frontend may ask for."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self.settings = settings
        self._pool = pool
        self._templates: dict[str, ChatTemplate] = {}
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
        await self._pool.close()

    # --- use cases --------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> Generation:
        """Starts to answer a conversation; returns once its prompt is tokenised, fits, and is
        queued or running. Raises Refused (the template's objection, too long, queue full) or Broken
        (loading, shutting down)."""
        prompt = await self.render(request)
        return await self._generate(prompt, request.params, request.model, param="messages")

    async def complete(self, request: CompletionRequest) -> Generation:
        """Starts to continue a raw prompt; as ``chat``."""
        return await self._generate(request.prompt, request.params, request.model, param="prompt")

    async def render(self, request: ChatRequest) -> str:
        """The prompt text a conversation becomes."""
        engine = self._pool.get(request.model)
        template = self._template(engine)
        return template.render(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            kwargs=request.template_kwargs,
        )

    async def tokenize(
        self, content: str | list[int | str], *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Token ids of a text, or of ids and texts mixed."""
        args = {"content": content, "add_special": add_special, "parse_special": parse_special}
        tokens: list[int] = await self._pool.get(None).call("tokenize", args)
        return tokens

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        """The bytes of each token, special ones by name. Refuses ids outside the vocabulary."""
        args = {"tokens": tokens, "special": True}
        pieces: list[bytes] = await self._pool.get(None).call("pieces", args)
        return pieces

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(await self.pieces(tokens)).decode("utf-8", "replace")

    async def control(self, args: dict[str, Any]) -> None:
        """Scripts the fake engine (see ``engine.fake``); refused by a real one."""
        await self._pool.get(None).call("control", args)

    async def _generate(
        self, prompt: str | list[int | str], params: Params, model: str | None, *, param: str
    ) -> Generation:
        engine = self._pool.get(model)
        effective = self.effective(params)
        add = Add(
            id=pools.next_request_id(),
            prompt=prompt,
            sampling=effective.sampling,
            stop=effective.stop,
            max_tokens=effective.max_tokens,
            cache_prompt=effective.cache_prompt,
        )
        try:
            request = await engine.submit(add)
        except CorralError as error:
            if error.param == "prompt":
                error.param = param  # what the prompt is called at this door
            raise
        return Generation(engine, request, request.accepted.result().n_prompt, effective)

    def _template(self, engine: Engine) -> ChatTemplate:
        """The engine's chat template, compiled once per model."""
        info = engine.info
        if info is None:
            raise engine.refusal()
        template = self._templates.get(engine.name)
        if template is None:
            if info.chat_template is None:
                log.warning("the model has no chat template; using ChatML")
            template = self._templates[engine.name] = ChatTemplate(
                info.chat_template or CHATML, bos_token=info.bos_token, eos_token=info.eos_token
            )
        return template

    # --- settings in force ------------------------------------------------------------------------

    def effective(self, params: Params) -> Effective:
        """What a request's settings come to: its own, the server's defaults for the rest."""
        d = self.settings

        def pick(asked: Any, default: Any) -> Any:
            return default if asked is None else asked

        seed = pick(params.seed, d.seed)
        sampling = Sampling(
            temperature=pick(params.temperature, d.temperature),
            top_k=pick(params.top_k, d.top_k),
            top_p=pick(params.top_p, d.top_p),
            min_p=pick(params.min_p, d.min_p),
            repeat_last_n=pick(params.repeat_last_n, d.repeat_last_n),
            repeat_penalty=pick(params.repeat_penalty, d.repeat_penalty),
            presence_penalty=pick(params.presence_penalty, d.presence_penalty),
            frequency_penalty=pick(params.frequency_penalty, d.frequency_penalty),
            seed=None if seed < 0 else seed,
            ignore_eos=pick(params.ignore_eos, False),
            logit_bias=pick(params.logit_bias, ()),
        )
        return Effective(
            sampling=sampling,
            stop=pick(params.stop, ()),
            max_tokens=pick(params.max_tokens, d.max_tokens),
            cache_prompt=pick(params.cache_prompt, True),
        )

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
    def snapshot(self) -> Snapshot | None:
        """The engine's state after its last step."""
        return self._pool.engine.snapshot

    def waiting_ahead(self, generation_id: int) -> int | None:
        """Requests before this one in the queue; None when it is not waiting."""
        snapshot = self.snapshot
        if snapshot is None or generation_id not in snapshot.waiting:
            return None
        return snapshot.waiting.index(generation_id)
