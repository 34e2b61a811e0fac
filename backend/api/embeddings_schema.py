"""The wire of embeddings and reranking: request bodies and what they mean, reply structs."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from corral.backend.api.prompts import Prompts, is_several, texts
from corral.backend.errors import Refused
from corral.backend.vectors import EmbedRequest

#: Most inputs in a request.
MAX_INPUTS = 65_536


class EmbeddingsBody(Struct, kw_only=True):
    """``POST /v1/embeddings`` and ``POST /embedding``."""

    input: Annotated[Prompts | None, Meta(description="text or token ids, or a list of these")] = (
        None
    )
    content: Annotated[
        Prompts | None, Meta(description="as input; the reply has llama-server's own shape")
    ] = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: (
        Annotated[int, Meta(ge=1, le=2**31 - 1, description="leave out the numbers after these")]
        | None
    ) = None
    embd_normalize: (
        Annotated[
            int,
            Meta(ge=-1, le=2**31 - 1, description="-1: none, 0: max-abs, 1: taxicab, 2: Euclidean"),
        ]
        | None
    ) = None
    truncate: Annotated[
        bool | None, Meta(description="cut what is too long instead of refusing it")
    ] = None
    user: str | None = None

    def request(self, n_vocab: int) -> EmbedRequest:
        """What is asked. Raises ``Refused`` naming the input."""
        at = "content" if self.input is None and self.content is not None else "input"
        given = self.content if self.input is None else self.input
        if given is None:
            raise Refused("input: text, tokens, or a list of these is expected", param="input")
        found = texts(given, n_vocab, at=at, most=MAX_INPUTS)
        asked = EmbedRequest(
            inputs=found,
            at=at,
            is_list=is_several(given),
            truncate=bool(self.truncate),
            model=self.model,
        )
        for i, prompt in enumerate(found):
            if not any(isinstance(part, int) or part for part in _parts(prompt)):
                raise Refused(f"{asked.place(i)} is empty", param=asked.place(i))
        return asked

    @property
    def is_native(self) -> bool:
        """Whether the member is the one that only llama-server knows."""
        return self.input is None and self.content is not None


def _parts(prompt: str | list[int | str]) -> list[int | str]:
    return [prompt] if isinstance(prompt, str) else prompt


class Document(Struct, frozen=True):
    """A document as an object."""

    text: str


class RerankBody(Struct, kw_only=True):
    """``POST /v1/rerank``: ``documents`` as Jina has it, or ``texts`` as TEI does."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_INPUTS)] | None = (
        None
    )
    texts: Annotated[list[str], Meta(min_length=1, max_length=MAX_INPUTS)] | None = None
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    return_text: Annotated[bool | None, Meta(description="with texts")] = None
    truncate: Annotated[
        bool | None, Meta(description="cut documents that are too long instead of refusing")
    ] = None
    user: str | None = None

    @property
    def all_texts(self) -> list[str]:
        """The documents' texts. Raises ``Refused`` unless they are given in one of the ways."""
        if self.documents is not None and self.texts is not None:
            raise Refused("documents and texts are the same thing; give one", param="texts")
        if self.texts is not None:
            return self.texts
        if self.documents is None:
            raise Refused("documents: a list of texts is expected", param="documents")
        return [d if isinstance(d, str) else d.text for d in self.documents]

    def request(self) -> EmbedRequest:
        """What is asked."""
        return EmbedRequest(
            inputs=tuple(self.all_texts),
            at="documents" if self.texts is None else "texts",
            is_list=True,
            query=self.query,
            truncate=bool(self.truncate),
            model=self.model,
        )


embeddings_decoder = msgspec.json.Decoder(EmbeddingsBody)
rerank_decoder = msgspec.json.Decoder(RerankBody)

# --- replies ----------------------------------------------------------------------------------


class InputUsage(Struct, frozen=True, kw_only=True):
    """Tokens of all inputs, twice, as OpenAI has it."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, frozen=True, kw_only=True):
    """One input's vector: numbers, or the base64 of little-endian float32."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str
    encoding_format: str | UnsetType = UNSET


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """``POST /v1/embeddings``: as many as there are inputs, in their order."""

    object: str = "list"
    model: str
    data: list[Embedding]
    usage: InputUsage


class NativeEmbedding(Struct, frozen=True, kw_only=True):
    """One input in llama-server's shape: a list of one vector, without pooling of each token's."""

    index: int
    embedding: list[list[float] | str]


class Ranked(Struct, frozen=True, kw_only=True):
    """One document's score; the higher, the better it answers. Comparable within one model."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Ranking(Struct, frozen=True, kw_only=True):
    """``POST /v1/rerank``: best first."""

    object: str = "list"
    model: str
    results: list[Ranked]
    usage: InputUsage


class RankedText(Struct, frozen=True, kw_only=True):
    """One of the ``texts`` in TEI's shape."""

    index: int
    score: float
    text: str | UnsetType = UNSET
