"""Dialects: how families of models write tool calls and reasoning. One small module each; the
first in the list that fits a model's chat template is its own."""

from typing import Final

from corral.backend.chat.dialects.base import Dialect
from corral.backend.chat.dialects.deepseek import DeepSeek, DeepSeekR1
from corral.backend.chat.dialects.functionary import Functionary, Functionary32
from corral.backend.chat.dialects.gemma4 import Gemma4
from corral.backend.chat.dialects.generic import Generic
from corral.backend.chat.dialects.harmony import Harmony
from corral.backend.chat.dialects.hermes import Hermes
from corral.backend.chat.dialects.kimi import Kimi
from corral.backend.chat.dialects.lists import LISTS
from corral.backend.chat.dialects.llama import Llama3
from corral.backend.chat.dialects.mistral import Mistral, MistralNemo
from corral.backend.chat.dialects.pythonic import Pythonic
from corral.backend.chat.dialects.tagged import TAGGED

#: In the order in which they are asked.
DIALECTS: Final[tuple[Dialect, ...]] = (
    Hermes(),
    Llama3(),
    MistralNemo(),
    Mistral(),
    Functionary(),
    Functionary32(),
    DeepSeek(),
    DeepSeekR1(),
    Kimi(),
    Harmony(),
    Gemma4(),
    *LISTS,
    *TAGGED,
    Pythonic(),
    Generic(),
)


def choose(template: str, controls: frozenset[str]) -> Dialect:
    """The dialect of a model with this chat template and these special tokens."""
    return next(dialect for dialect in DIALECTS if dialect.fits(template, controls))
