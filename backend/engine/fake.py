"""A model that is none: deterministic, quick, and it can be held. Stands in for ``llama.Llama``.

Tokens are bytes and three special ones. In a chat it repeats the last user message; otherwise its
next letter is a hash of everything before, so that a wrong cache shows in the text. It keeps the
cache as llama.cpp does and refuses what llama.cpp would refuse.
"""

from __future__ import annotations

import math
import os
import re
import struct
import time
import zlib
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corral.backend.engine import sampling
from corral.backend.engine.llama import Choice, DecodeFailed, KvFull, Mask, NotFinite, Row
from corral.backend.engine.media import BadMedia, Item, Part, item_tokens, stretches
from corral.backend.engine.messages import (
    AdapterSet,
    LoraInfo,
    Media,
    ModelInfo,
    Prompt,
    Written,
)
from corral.backend.engine.written import Specials

if TYPE_CHECKING:
    from corral.backend.engine.scheduler import Scheduler

START, END, EOT = 256, 257, 258
SPECIAL = {"<|im_start|>": START, "<|im_end|>": END, "<|endoftext|>": EOT}
_NAMES = {token: name for name, token in SPECIAL.items()}
_STATE = struct.Struct("<hI")
_SPLIT = re.compile("(" + "|".join(re.escape(s) for s in SPECIAL) + ")")
_ASSISTANT = list(b"assistant\n")
_USER = list(b"user\n")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class _Cell(NamedTuple):
    """One cached token at position ``at``, the next one at ``after``; ``digest`` depends on all
    tokens up to it and the adapters they had."""

    number: int
    token: int
    digest: int
    at: int
    after: int


class FakeSampler:
    """Chooses what the fake computed; greedy whatever was asked."""

    def __init__(self, n_probs: int = 0) -> None:
        self.n_probs = n_probs

    def accept(self, token: int) -> None:
        """Nothing to remember."""

    def close(self) -> None:
        """Nothing to free."""


class FakeLlama:
    """See the module. ``step_ms``: time of one call. With ``vision`` a picture or sound is four
    tokens, with a line break behind them; ``n_pos`` and ``is_whole``: see ``media.Item``."""

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
        n_idle_cells: int | None = None,
        lora: tuple[tuple[str, float], ...] = (),
        vision: bool = False,
        n_pos: int = 4,
        is_whole: bool = False,
    ) -> None:
        self.n_idle_cells = n_ctx if n_idle_cells is None else n_idle_cells
        self.fingerprint = f"fake-{n_ctx}".ljust(16, "-")
        self.adapter_digests = [f"digest of {path}" for path, _ in lora]
        self.adapter_infos = [
            LoraInfo(id=i, path=path, scale=scale) for i, (path, scale) in enumerate(lora)
        ]
        self.adapters: AdapterSet = ()
        self.n_refuse = 0  # states to refuse from now on
        self.n_ctx = self.n_cells = n_ctx
        self.n_seq_max = n_seq_max
        self.n_batch = n_batch
        self.n_vocab = 259
        self.can_share = can_share
        self.tile_rows = tile_rows
        self._n_pos = n_pos
        self._is_whole = is_whole
        self.n_encoded = 0  # items, in all
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
            special_tokens=list(SPECIAL),
            vision=vision,
            audio=vision,
            audio_rate=16_000 if vision else 0,
            lora=self.adapter_infos,
            fim_pre=1,
            fim_suf=2,
            fim_mid=3,
            fim_rep=4,
            fim_sep=5,
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
    def bos_token(self) -> int:
        """None."""
        return -1

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

    def tokenize_prompt(self, prompt: Prompt) -> list[int]:
        """As ``Llama.tokenize_prompt``; this model wants no BOS."""
        if isinstance(prompt, Written):
            return self.tokenize_stretches(prompt)[0]
        parts = [prompt] if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.tokenize(part, add_special=False, parse_special=True)
        return tokens

    def tokenize_stretches(self, prompt: Written) -> list[list[int]]:
        """As ``Llama.tokenize_stretches``."""
        texts = (list[int | str](Specials(SPECIAL).pieces(text)) for text in stretches(prompt))
        return [self.tokenize_prompt(text) for text in texts]

    # --- pictures and sounds --------------------------------------------------------------------

    @property
    def row_bytes(self) -> int:
        """One number."""
        return 4

    def see(self, media: Media) -> list[Part]:
        """As ``Llama.see``."""
        if not self.info.vision:
            raise BadMedia("this model takes no pictures; start the server with --mmproj")
        tokens = item_tokens(f"{media.kind}/{media.key}", 4)
        item = Item(tokens, n_pos=self._n_pos, is_whole=self._is_whole, chunk=None)
        return [item, [ord("\n")]]

    def encode(self, item: Item) -> None:
        """As ``Llama.encode``."""
        self.n_encoded += 1
        item.rows = np.zeros((len(item.tokens), 1), np.float32)

    def decode_item(
        self, item: Item, seq_id: int, at: int, start: int, n: int, *, wants_logits: bool
    ) -> int:
        """As ``Llama.decode_item``."""
        assert item.rows is not None and (n == 4 or not item.is_whole)
        (last,) = self.decode([Row(seq_id, at, item.tokens[start : start + n], wants_logits)])
        if item.is_whole:  # all at one position
            cells = self._cells[seq_id]
            cells[-n:] = [c._replace(at=at, after=at + item.n_pos) for c in cells[-n:]]
        return last

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The byte, or nothing for special tokens unless ``special``."""
        if token < 256:
            return bytes([token])
        return _NAMES[token].encode() if special else b""

    # --- the cache ------------------------------------------------------------------------------

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Shares cells, as llama_memory_seq_cp."""
        cells = self._cells.setdefault(target, [])
        assert _end(cells) == start and 0 <= target < self.n_seq_max and self.can_share
        cells += [c for c in self._cells.get(source, []) if start <= c.at < end]
        assert _end(cells) == end

    def cut(self, seq_id: int, start: int) -> None:
        """Drops cells, as llama_memory_seq_rm."""
        cells = self._cells.get(seq_id, [])
        del cells[bisect_left(cells, start, key=lambda cell: cell.at) :]
        assert _end(cells) <= start

    def save_state(self, seq_id: int) -> bytes:
        """A sequence's cells as bytes."""
        return b"".join(
            _STATE.pack(max(c.token, -1), c.digest) for c in self._cells.get(seq_id, [])
        )

    def load_state(self, seq_id: int, data: bytes) -> bool:
        """Gives a sequence saved cells, as llama_state_seq_set_data."""
        self.cut(seq_id, 0)
        n = len(data) // _STATE.size
        if self.n_refuse > 0 or n == 0 or n > self.n_cells - self.n_used():
            self.n_refuse -= 1
            return False
        cells = self._cells.setdefault(seq_id, [])
        for at, (token, digest) in enumerate(_STATE.iter_unpack(data)):
            self._n_numbers += 1
            cells.append(_Cell(self._n_numbers, token, digest, at, at + 1))
        return True

    def set_adapters(self, adapters: AdapterSet) -> None:
        """The LoRA set of the next calls; what is computed depends on it."""
        assert all(0 <= i < len(self.adapter_infos) and scale != 0 for i, scale in adapters)
        self.adapters = adapters

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
        if any(r.start != _end(self._cells.get(r.seq_id, [])) for r in rows):
            raise DecodeFailed(-1)
        if n > self.n_cells - self.n_used():
            raise KvFull
        last, end = [], 0
        self._next.clear()
        salt = repr(self.adapters).encode() if self.adapters else b""
        for row in rows:
            cells = self._cells.setdefault(row.seq_id, [])
            for at, token in enumerate(row.tokens, row.start):
                before = cells[-1].digest if cells else 0
                self._n_numbers += 1
                data = token.to_bytes(2 if token >= 0 else 4, "little", signed=token < 0) + salt
                digest = zlib.crc32(data, before)
                cells.append(_Cell(self._n_numbers, token, digest, at, at + 1))
            end += len(row.tokens)
            last.append(end - 1)
            if row.wants_logits or row.all_logits:
                self._next[end - 1] = self._choose(cells)
        self.n_computed += n
        return last

    def sampler(
        self,
        stages: list[sampling.Stage],
        prompt: array[int],
        n_probs: int = 0,
        post_sampling: bool = False,
    ) -> FakeSampler:
        """A sampler; the stages change nothing."""
        return FakeSampler(n_probs)

    def sample(self, sampler: FakeSampler, index: int, mask: Mask | None = None) -> Choice:
        """The token chosen for a row that asked for it, or the first that ``mask`` allows."""
        token = self._next[index]
        if mask is not None:
            logits = np.zeros(self.n_vocab, np.float32)
            mask(logits)
            if not np.isfinite(logits[token]):
                token = int(logits.argmax())
            if not np.isfinite(logits[token]):
                raise NotFinite
        return self.log_probs(index, token, sampler.n_probs) if sampler.n_probs else Choice(token)

    def log_probs(self, index: int, token: int, n: int) -> Choice:
        """Made-up probabilities: the token itself has a half, each after it half of the one
        before."""
        top = tuple((((token + i) % self.n_vocab), -(i + 1) * math.log(2)) for i in range(n))
        return Choice(token, -math.log(2), top)

    def _choose(self, cells: list[_Cell]) -> int:
        tokens = [c.token for c in cells]
        reply = _reply(tokens)
        if reply is not None:
            return reply
        digest = cells[-1].digest
        return EOT if digest % 97 == 0 else b"abcdefghijklmnopqrstuvwxyz      "[digest >> 8 & 31]


def _end(cells: list[_Cell]) -> int:
    """The position behind some cells."""
    return cells[-1].after if cells else 0


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
            answer = [token for token in answer if token >= 0]
            return answer[done] if done < len(answer) else END
    return END
