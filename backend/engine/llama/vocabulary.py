"""The model's vocabulary: text to tokens and back. Any thread may call these functions."""

import ctypes
import functools
from typing import Any

from corral.backend.engine.llama.native import lib
from corral.backend.engine.media import stretches
from corral.backend.engine.messages import Prompt, Written
from corral.backend.engine.written import Specials


class Vocabulary:
    """The vocabulary of a loaded model (``llama_model *``)."""

    def __init__(self, model: Any) -> None:
        self._vocab = lib.llama_model_get_vocab(model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self._vocab))
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._eog = frozenset(
            t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(self._vocab, t)
        )
        self._bos = int(lib.llama_vocab_bos(self._vocab))
        self._add_bos = bool(lib.llama_vocab_get_add_bos(self._vocab)) and self._bos >= 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``. Lone surrogates become ``?``: other bytes than valid UTF-8 make
        some tokenizers abort."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 16
        buffer = (ctypes.c_int32 * size)()
        n = lib.llama_tokenize(
            self._vocab, data, len(data), buffer, size, add_special, parse_special
        )
        if n < 0:
            buffer = (ctypes.c_int32 * -n)()
            n = lib.llama_tokenize(
                self._vocab, data, len(data), buffer, -n, add_special, parse_special
            )
        return buffer[:n]

    def tokenize_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: special tokens in text count, but not in what of it is foreign,
        and there is exactly one BOS in front when the model wants one and the prompt begins with
        text."""
        if isinstance(prompt, Written):
            assert not prompt.places
            return self.tokenize_stretches(prompt)[0]
        parts = [prompt] if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.tokenize(part, add_special=False, parse_special=True)
        is_text = not parts or isinstance(parts[0], str)
        return self._with_bos(tokens) if is_text else tokens

    def tokenize_stretches(self, prompt: Written) -> list[list[int]]:
        """Token ids of the texts before, between and behind a prompt's places, each tokenised for
        itself as libmtmd does; see ``tokenize_prompt``."""
        first, *others = (
            self._tokenize_pieces(self._specials.pieces(text)) for text in stretches(prompt)
        )
        return [self._with_bos(first), *others]

    def _with_bos(self, tokens: list[int]) -> list[int]:
        """Tokens with exactly one BOS in front, when the model wants one."""
        return [self._bos, *tokens] if self._add_bos and tokens[:1] != [self._bos] else tokens

    def _tokenize_pieces(self, pieces: list[str]) -> list[int]:
        """Tokens of a text that was cut where tokens must not reach across."""
        tokens = self.tokenize(pieces[0], add_special=False, parse_special=True)
        # A space that SentencePiece puts in front of a text belongs in front of the first alone:
        # the others get a line break there, which is then taken off again.
        is_spm = lib.llama_vocab_type(self._vocab) == lib.LLAMA_VOCAB_TYPE_SPM
        front = self.tokenize("\n", add_special=False, parse_special=False) if is_spm else []
        for piece in pieces[1:]:
            more = self.tokenize("\n" + piece, add_special=False, parse_special=True)
            if front and more[: len(front)] == front:
                tokens += more[len(front) :]
            else:
                tokens += self.tokenize(piece, add_special=False, parse_special=True)
        return tokens

    @functools.cached_property
    def special_tokens(self) -> list[str]:
        """The texts of all tokens that llama.cpp finds by their text."""
        kinds = (
            lib.LLAMA_TOKEN_ATTR_CONTROL
            | lib.LLAMA_TOKEN_ATTR_USER_DEFINED
            | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        )
        return [
            self._text(token)
            for token in range(self.n_vocab)
            if lib.llama_vocab_get_attr(self._vocab, token) & kinds
        ]

    @functools.cached_property
    def _specials(self) -> Specials:
        return Specials(self.special_tokens)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token stands for; nothing for control tokens unless ``special``."""
        if (token, special) in self._pieces:
            return self._pieces[token, special]
        assert 0 <= token < self.n_vocab
        size = 64
        buffer = ctypes.create_string_buffer(size)
        n = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
        if n < 0:
            size = -n
            buffer = ctypes.create_string_buffer(size)
            n = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
        data = buffer.raw[: max(n, 0)]
        self._pieces[token, special] = data
        return data

    def is_eog(self, token: int) -> bool:
        """Whether a token ends the generation."""
        return token in self._eog

    @property
    def bos_token(self) -> int:
        """The token texts begin with, -1 when there is none."""
        return self._bos

    @property
    def eog_tokens(self) -> frozenset[int]:
        """All tokens that end the generation."""
        return self._eog

    def _text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
