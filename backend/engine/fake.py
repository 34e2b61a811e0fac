"""A model that is none: deterministic, quick, and it can be held. Stands in for ``llama.Llama``.

Tokens are bytes and three special ones. In a chat it repeats the last user message; otherwise its
next letter is a hash of everything before, so that a wrong cache shows in the text. It keeps the
cache as llama.cpp does and refuses what llama.cpp would refuse.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from corral.backend.engine import sampling
from corral.backend.engine.llama import DecodeFailed, KvFull, Row
from corral.backend.engine.messages import ModelInfo

if TYPE_CHECKING:
    from corral.backend.engine.scheduler import Scheduler

START, END, EOT = 256, 257, 258
SPECIAL = {"<|im_start|>": START, "<|im_end|>": END, "<|endoftext|>": EOT}
_NAMES = {token: name for name, token in SPECIAL.items()}
_SPLIT = re.compile("(" + "|".join(re.escape(s) for s in SPECIAL) + ")")
_ASSISTANT = list(b"assistant\n")
_USER = list(b"user\n")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class _Cell(NamedTuple):
    """One cached token; ``digest`` depends on all tokens up to it."""

    number: int
    token: int
    digest: int


class FakeSampler:
    """Chooses what the fake computed; greedy whatever was asked."""

    def close(self) -> None:
        """Nothing to free."""


class FakeLlama:
    """See the module. ``step_ms``: time of one call."""

    def __init__(
        self,
        *,
        n_ctx: int = 4096,
        n_slots: int = 4,
        n_seq_max: int = 12,
        n_batch: int = 64,
        step_ms: float = 0.0,
        can_share: bool = True,
        tile_rows: int = 0,
    ) -> None:
        self.n_ctx = self.n_cells = n_ctx
        self.n_seq_max = n_seq_max
        self.n_batch = n_batch
        self.n_vocab = 259
        self.can_share = can_share
        self.tile_rows = tile_rows
        self.n_computed = 0  # tokens computed in all, for tests that count
        self.threads = 1
        self._cells: dict[int, list[_Cell]] = {}
        self._next: dict[int, int] = {}
        self._n_numbers = 0
        self._step_ms = step_ms
        self._crash: str | None = None
        self._hold: str | None = None
        self._hold_after: int | None = None
        self.info = ModelInfo(
            path="fake",
            architecture="fake",
            description="scripted engine",
            ftype="none",
            n_ctx=n_ctx,
            n_ctx_train=n_ctx,
            n_vocab=self.n_vocab,
            n_embd=1,
            n_params=0,
            size_bytes=0,
            vocab_type=2,
            n_slots=n_slots,
            add_bos=False,
            bos_token="",
            eos_token="<|im_end|>",
            chat_template=TEMPLATE,
        )

    # --- control --------------------------------------------------------------------------------

    def control(self, args: dict[str, Any]) -> None:
        """Scripts the engine: ``hold`` "prefill" or "decode" stops it once a request has read
        ``after`` prompt tokens (default: two fifths) or generated ``after`` (default: 8), None
        lets it go on; ``step_ms`` sets the time of a call; ``crash`` "abort" or "exit" ends the
        process at the next call."""
        if "hold" in args:
            self._hold, self._hold_after = args["hold"], args.get("after")
        self._step_ms = args.get("step_ms", self._step_ms)
        self._crash = args.get("crash", self._crash)

    def holds(self, scheduler: Scheduler) -> bool:
        """Whether no step may be made now."""
        for s in scheduler.running:
            if self._hold == "prefill" and s.is_reading:
                after = s.n_prompt * 2 // 5 if self._hold_after is None else self._hold_after
                if s.n_computed >= after:
                    return True
            after = 8 if self._hold_after is None else self._hold_after
            if self._hold == "decode" and s.n_generated >= max(1, after):
                return True
        return False

    # --- vocabulary -----------------------------------------------------------------------------

    @property
    def eog_tokens(self) -> frozenset[int]:
        """Tokens that end the generation."""
        return frozenset((END, EOT))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The bytes of ``text``; special tokens where they are parsed."""
        if not parse_special:
            return list(text.encode("utf-8", "replace"))
        tokens: list[int] = []
        for part in _SPLIT.split(text):
            tokens += [SPECIAL[part]] if part in SPECIAL else list(part.encode("utf-8", "replace"))
        return tokens

    def tokenize_prompt(self, prompt: str | list[int | str]) -> list[int]:
        """As ``Llama.tokenize_prompt``; this model wants no BOS."""
        parts = [prompt] if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.tokenize(part, add_special=False, parse_special=True)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The byte, or nothing for special tokens unless ``special``."""
        if token < 256:
            return bytes([token])
        return _NAMES[token].encode() if special else b""

    # --- the cache ------------------------------------------------------------------------------

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Shares cells, as llama_memory_seq_cp."""
        cells = self._cells.setdefault(target, [])
        assert len(cells) == start and 0 <= target < self.n_seq_max and self.can_share
        shared = self._cells.get(source, [])[start:end]
        assert len(shared) == end - start
        cells += shared

    def cut(self, seq_id: int, start: int) -> None:
        """Drops cells, as llama_memory_seq_rm."""
        del self._cells.get(seq_id, [])[start:]

    def n_used(self) -> int:
        """Cells that belong to some sequence."""
        return len({c.number for cells in self._cells.values() for c in cells})

    # --- computing ------------------------------------------------------------------------------

    def set_threads(self, n: int) -> None:
        """Notes the number."""
        self.threads = n

    def warm_up(self) -> None:
        """Nothing to warm."""

    def decode(self, rows: list[Row]) -> list[int]:
        """As ``Llama.decode``, with its refusals."""
        if self._crash == "abort":
            os.abort()
        if self._crash == "exit":
            os._exit(3)
        if self._step_ms:
            time.sleep(self._step_ms / 1e3)
        n = sum(len(r.tokens) for r in rows)
        assert 0 < n <= self.n_batch
        if any(r.start != len(self._cells.get(r.seq_id, [])) for r in rows):
            raise DecodeFailed(-1)
        if n > self.n_cells - self.n_used():
            raise KvFull
        last, end = [], 0
        self._next.clear()
        for row in rows:
            cells = self._cells.setdefault(row.seq_id, [])
            for token in row.tokens:
                before = cells[-1].digest if cells else 0
                self._n_numbers += 1
                cells.append(
                    _Cell(
                        self._n_numbers, token, zlib.crc32(bytes((token & 255, token >> 8)), before)
                    )
                )
            end += len(row.tokens)
            last.append(end - 1)
            if row.wants_logits:
                self._next[end - 1] = self._choose(cells)
        self.n_computed += n
        return last

    def sampler(self, stages: list[sampling.Stage], prompt: array[int]) -> FakeSampler:
        """A sampler; the stages change nothing."""
        return FakeSampler()

    def sample(self, sampler: FakeSampler, index: int) -> int:
        """The token chosen for a row that asked for it."""
        return self._next[index]

    def _choose(self, cells: list[_Cell]) -> int:
        tokens = [c.token for c in cells]
        reply = _reply(tokens)
        if reply is not None:
            return reply
        digest = cells[-1].digest
        return EOT if digest % 97 == 0 else b"abcdefghijklmnopqrstuvwxyz      "[digest >> 8 & 31]


def _reply(tokens: list[int]) -> int | None:
    """The next token of a chat answer, or None when ``tokens`` is no chat."""
    starts = [i for i, t in enumerate(tokens) if t == START]
    if not starts or tokens[starts[-1] + 1 : starts[-1] + 1 + len(_ASSISTANT)] != _ASSISTANT:
        return None
    done = len(tokens) - (starts[-1] + 1 + len(_ASSISTANT))
    for start in reversed(starts[:-1]):
        begin = start + 1 + len(_USER)
        if tokens[start + 1 : begin] == _USER:
            answer = tokens[begin : starts[-1]]
            answer = answer[: answer.index(END)] if END in answer else answer
            return answer[done] if done < len(answer) else END
    return END
