"""From texts to the tokens an embedding model reads: special tokens around one, between two."""

from __future__ import annotations

import re
from typing import Any

from corral.backend.engine.llama.native import lib
from corral.backend.engine.llama.vocabulary import Vocabulary

#: Where a model's template for ranking has its two texts (llama.cpp's convention).
_PLACES = re.compile(r"\{(query|document)\}")


class Inputs(Vocabulary):
    """The vocabulary of a model (``llama_model *``) that reads whole texts. Any thread."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        vocab = self._vocab
        eos, sep = int(lib.llama_vocab_eos(vocab)), int(lib.llama_vocab_sep(vocab))
        if int(lib.llama_vocab_type(vocab)) == lib.LLAMA_VOCAB_TYPE_WPM:
            # BERT's, whatever the file's flags say: [CLS] a [SEP], and [CLS] a [SEP] b [SEP].
            adds = [self._bos], [sep], [sep]
        else:
            end = [eos if eos >= 0 else sep] if lib.llama_vocab_get_add_eos(vocab) else []
            between = [*end, sep] if lib.llama_vocab_get_add_sep(vocab) else end
            adds = [self._bos] if self._add_bos else [], between, end
        self._head, self._between, self._tail = ([t for t in part if t >= 0] for part in adds)
        template = lib.llama_model_chat_template(model, b"rerank")
        self._template = _PLACES.split(template.decode("utf-8", "replace")) if template else None
        self._markers = self._find_markers()

    def tokenize_input(self, prompt: str | list[int | str], limit: int | None = None) -> list[int]:
        """Token ids of an input, with the special tokens the model wants before and after text,
        once. Ids are taken as they are. ``limit``: what is longer loses its end."""
        parts = [prompt] if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.tokenize(part, add_special=False, parse_special=True)
        head = self._head if parts and isinstance(parts[0], str) else []
        tail = self._tail if parts and isinstance(parts[-1], str) else []
        if head and tokens[:1] == head:
            head = []
        if tail and tokens[-1:] == tail:
            tail = []
        if limit is not None:
            tokens = tokens[: max(0, limit - len(head) - len(tail))]
        return [*head, *tokens, *tail]

    def tokenize_pair(self, query: str, document: str, limit: int | None = None) -> list[int]:
        """Token ids of a query and a document as one input: by the model's template for it, or with
        its special tokens between. Neither text becomes a special token. ``limit``: a pair that is
        longer loses the document's end."""
        if self._template is None:
            asked, found = self._plain(query), self._plain(document)
            around = [*self._head, *asked, *self._between, *self._tail]
            if limit is not None:
                found = found[: max(0, limit - len(around))]
            return [*self._head, *asked, *self._between, *found, *self._tail]
        tokens = self._fill(query, document)
        while limit is not None and len(tokens) > limit and document:
            # By tokens of the document alone: at the seams there may be one more or less.
            kept = self._plain(document)[: -(len(tokens) - limit)]
            shorter = b"".join(self.piece(t) for t in kept).decode("utf-8", "ignore")
            document = shorter if len(shorter) < len(document) else document[:-1]
            tokens = self._fill(query, document)
        return tokens

    def _plain(self, text: str) -> list[int]:
        return self.tokenize(text, add_special=False, parse_special=False)

    def _find_markers(self) -> dict[str, int]:
        """The special tokens in the template's own text, by name."""
        found = {}
        for text in (self._template or [])[::2]:
            for token in self.tokenize(text, add_special=False, parse_special=True):
                if not self.piece(token) and (name := self._text(token)):
                    found[name] = token
        return found

    def _fill(self, query: str, document: str) -> list[int]:
        """The template with its texts, tokenised in one go between the template's own markers, so
        that words fall into tokens as they do in running text."""
        assert self._template is not None
        texts = {"query": query, "document": document}
        tokens: list[int] = []
        run = ""
        markers = re.compile("(" + "|".join(map(re.escape, self._markers)) + ")")
        for i, part in enumerate(self._template):
            pieces = [texts[part]] if i % 2 else markers.split(part) if self._markers else [part]
            for j, piece in enumerate(pieces):
                if not i % 2 and j % 2:
                    tokens += [*self._plain(run), self._markers[piece]]
                    run = ""
                else:
                    run += piece
        return tokens + self._plain(run)
