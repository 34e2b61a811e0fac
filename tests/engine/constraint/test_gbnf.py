"""GBNF: the grammars that llama.cpp publishes, or ones like them, and the errors in others."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.backend.engine.constraint import BadConstraint, ConstraintFailed
from corral.backend.engine.constraint.gbnf import parse
from corral.backend.engine.constraint.gbnf_lark import Writer
from corral.backend.engine.constraint.gbnf_lexemes import lexemes

ARITHMETIC = r"""
root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
"""
CHESS = r"""# moves
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]   # piece, from, capture, to
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
JAPANESE = r"""
root ::= jp-char+ ([ \t\n] jp-char+)*
jp-char ::= hiragana | katakana | punctuation | cjk
hiragana ::= [ぁ-ゟ]
katakana ::= [ァ-ヿ]
punctuation ::= [、-〾]
cjk ::= [一-鿿]
"""
JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
PROGRAM = r"""
root ::= (declaration)*
declaration ::= type identifier "(" parameter? ")" "{" statement* "}"
type ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= type identifier
statement ::= ( type identifier ws "=" ws expression ";" ) | ( "return" ws expression ";" ) |
  ( "while" "(" expression ("<" | "<=" | "==") expression ")" "{" statement* "}" )
expression ::= term (("+" | "-") term)*
term ::= identifier | [0-9]+ | "(" expression ")"
ws ::= ([ \t\n]+)
"""
LIST = 'root ::= item+\n\n# no lone line breaks\nitem ::= "- " [^\\r\\n\\x0b\\x0c]+ "\\n"\n'

EXAMPLES = {
    "arithmetic": (
        *(ARITHMETIC, ["x=1\n", "(x+1)*2 = 3\ny=y\n"], ["x=1", "x+=1\n", "(x=1\n", ""]),
    ),
    "chess": (
        CHESS,
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. exd5 O-O-O+\n12. a8=Q Qxa8#\n"],
        ["1. e4 e5\n", "1. e9 e5\n2. a4 a5\n"],
    ),
    "japanese": (JAPANESE, ["ひらがな。カタカナ", "日本 語"], ["abc", "日本  語", ""]),
    "json": (
        JSON,
        ["{}", '{"a": [1, -2.5e3, "\\u00e9 é 日本", null], "b":{"c":true}} ', '{"a":\n\t[]}'],
        ["[]", '{"a":01}', "{a:1}", '{"a":1}  ', '{"a":"\n"}', '{"a":1,}'],
    ),
    "program": (
        PROGRAM,
        ["", "int f(int x){return x+(1-y);}int g(){int a = 12;while(a<=b){}}"],
        ["int f(int x){return x+;}", "int f{}", "void f(){}"],
    ),
    "list": (LIST, ["- a\n", "- a b\n- é\n"], ["- a", "a\n", "- \n", "- a\n\n"]),
    "greedy words": ('root ::= [a-z]* "end"', ["end", "xend", "endend", "enend"], ["en", "endx"]),
    "greedy letters": ('root ::= "a"* "ab"', ["ab", "aaab"], ["aa", "b"]),
    "shared beginnings": ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
    "shared in recursion": (
        'root ::= "(" root ")" | "a" "bc" | "ab" "d" | [0-9]* "0x"',
        ["((abc))", "(abd)", "(100x)", "0x"],
        ["(ab)", "(10)"],
    ),
    "repetition of a repetition": ('root ::= foo**\nfoo ::= "ab"', ["", "abab"], ["a", "aba"]),
    "left recursion": ('root ::= root "+" n | n\nn ::= [0-9]', ["1", "1+2+3"], ["+1", "1+"]),
    "counts": ('root ::= "a"{2} "b"{1,} "c"{0,2} "d"{0}', ["aab", "aabbcc"], ["aa", "aabccc"]),
    "a literal counts whole": ('root ::= "ab"+', ["ab", "abab"], ["abb"]),
    "escapes": (
        'root ::= "\\x41\\u00e9\\U0001F432\\t\\"\\\\" [\\]\\-^] [^^]',
        ['Aé🐲\t"\\]x', 'Aé🐲\t"\\-x'],
        ['Aé🐲\t"\\x^'],
    ),
    "any character": ("root ::= .{2}", ["\na", "日🐲"], ["a", "abc"]),
    "lines": (
        'root ::=\r\n  x |\r\n  y\r\n  | z # z\r\nx::="x"\r\ny ::= (\n"y"\n)\n z ::= "z"',
        ["x", "y", "z"],
        ["xy"],
    ),
    "empty options": ('root ::= "a" | | ("" | "b") "c"', ["", "a", "c", "bc"], ["b"]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_grammar_takes_what_it_says_and_nothing_else(kit: Any, name: str) -> None:
    source, good, bad = EXAMPLES[name]
    start = kit.compile("gbnf", source)
    assert [t for t in good if not kit.accepts(start, t)] == []
    assert [t for t in bad if kit.accepts(start, t)] == []


def test_random_answers_never_get_stuck_and_fit_the_grammar(kit: Any) -> None:
    start = kit.compile("gbnf", CHESS)
    square = r"[a-h][1-8]"
    move = rf"(([a-h]x)?{square}(=[NBKQR])?|[NBKQR][a-h]?[1-8]?x?{square}|O-O(-O)?)[+#]?"
    game = re.compile(rf"1\. {move} {move}\n([1-9][0-9]?\. {move} {move}\n)+")
    for seed in range(30):
        text = kit.draw(start, np.random.default_rng(seed), 2_000)
        assert text is not None and game.fullmatch(text), text


#: A literal, class, choice, sequence or repetition, as GBNF and as Python's regular expression.
pieces = st.recursive(
    st.sampled_from([('"a"', "a"), ('"ab"', "(?:ab)"), ("[ab]", "[ab]"), ("[^a]", "[^a]")]),
    lambda inner: st.one_of(
        st.builds(lambda x, y: (f"{x[0]} {y[0]}", x[1] + y[1]), inner, inner),
        st.builds(lambda x, y: (f"({x[0]} | {y[0]})", f"(?:{x[1]}|{y[1]})"), inner, inner),
        st.builds(
            lambda x, times: (f"({x[0]}){times}", f"(?:{x[1]}){times}"),
            inner,
            st.sampled_from(["*", "+", "?", "{2}", "{0,2}"]),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces, st.lists(st.text("abc", max_size=6), min_size=4, max_size=4), st.booleans())
def check_against_python(
    kit: Any, piece: tuple[str, str], texts: list[str], recursive: bool
) -> None:
    gbnf, regex = piece
    source = f'root ::= {gbnf} | "(" root ")"' if recursive else f"root ::= {gbnf}"
    assert lexemes(parse(source)) is not None
    start = kit.compile("gbnf", source)
    for text in texts:
        fits = re.fullmatch(regex, text) is not None
        assert kit.accepts(start, text) == fits, (source, text)
        if recursive:
            fits |= re.fullmatch(regex, f"({text})") is not None
            assert kit.accepts(start, f"({text})") == fits, (source, text)


def test_grammars_mean_what_the_same_regular_expression_means(kit: Any) -> None:
    check_against_python(kit)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "grammar: has no rule named root"),
        ('x ::= "a"', "grammar: has no rule named root"),
        ('root ::= "a"\n\nx ::= foo bar\nfoo ::= "x"', "grammar line 3: rule bar is not defined"),
        ('root ::= "a"\nroot ::= "b"', "grammar line 2: rule root is defined twice"),
        ('root = "a"', "grammar line 1: expected a rule"),
        ('root ::= ("a"\n"b"', "grammar line 1: this group is not closed"),
        ('root ::= "a")', "grammar line 1: unexpected ')'"),
        ("root ::= *", "grammar line 1: nothing stands before '*'"),
        ('root ::= "a" | +', "grammar line 1: nothing stands before '+'"),
        ('root ::= "a"{3,2}', "grammar line 1: the range {3,2} is empty"),
        ('root ::= "a"{99999}', "grammar line 1: more than 2000 repetitions"),
        ('root ::= "a"{99999999999999999999}', "grammar line 1: more than 2000 repetitions"),
        ('root ::= "\\q"', "grammar line 1: unknown escape \\q"),
        ('root ::= "\\uD800"', "grammar line 1: \\uD800 is no character"),
        ('root ::= "\\UFFFFFFFF"', "grammar line 1: \\UFFFFFFFF is no character"),
        ('root ::= "abc', "grammar line 1: unexpected '\"'"),
        ("root ::= [abc", "grammar line 1: unexpected '['"),
        ("root ::= []", "grammar line 1: this class holds no character"),
        ("root ::= [z-a]", "grammar line 1: the range z-a is empty"),
        ("root ::= <nope>", "grammar: at"),
        ("root ::= !<nope>", "grammar line 1: only a token's number"),
        ("root ::= x\nx ::= y\ny ::= x", "grammar: nothing can match it"),
        ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "grammar line 1: groups are nested deeper"),
        ("root ::= a\n" + "a ::= \x00", "grammar line 2: unexpected '\\x00'"),
    ],
)
def test_an_error_says_what_and_where(kit: Any, source: str, message: str) -> None:
    with pytest.raises(BadConstraint) as caught:
        kit.compile("gbnf", source)
    assert str(caught.value).startswith(message)


@settings(max_examples=300, deadline=None)
@given(st.text('ab"[]()|*+?{},.<>!\\^-: \n#=root0x', max_size=60))
def test_no_text_is_more_than_a_bad_grammar(text: str) -> None:
    for source in (text, "root ::= " + text):
        try:
            parse(source)
        except BadConstraint as error:
            assert error.path.startswith("grammar")


# --- lexemes -------------------------------------------------------------------------------------

_WORDS = (
    *('"a"', '"b"', '"ab"', '"abc"', "[ab]", "[^a]", "[a-c]", '"é"', '"é" [à-ÿ]', '"("', '")"'),
    *('""', ".", "[ \\n]*", "x", "y", "ws", "root"),
)
bodies = st.recursive(
    st.sampled_from(_WORDS),
    lambda inner: st.one_of(
        st.builds("{} {}".format, inner, inner),
        st.builds("({} | {})".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])),
    ),
    max_leaves=5,
)
spaces = st.sampled_from(['" "*', '| " " | "\\n" [ \\t]{0,2}', "[ ]?", '" "'])


def compiled(kit: Any, lines: list[str]) -> Any:
    return kit.compile("lark", "\n".join(lines))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(bodies, bodies, bodies, spaces, st.integers(0, 2**32))
def check_cut(kit: Any, root: str, x: str, y: str, ws: str, seed: int) -> None:
    source = f'root ::= {root} | "(" root ")" ws\nx ::= {x}\ny ::= {y}\nws ::= {ws}'
    grammar = parse(source)
    cut = lexemes(grammar)
    assert cut is not None
    try:
        plain = compiled(kit, list(Writer(grammar, None).lines()))
    except BadConstraint:
        return  # nothing can match it, or it is too ambiguous
    quick = compiled(kit, list(Writer(grammar, cut).lines()))
    rng = np.random.default_rng(seed)
    try:
        for _ in range(12):
            np.testing.assert_array_equal(plain.mask(), quick.mask(), source)
            assert (plain.may_stop, plain.must_stop) == (quick.may_stop, quick.must_stop)
            allowed = [t for t in range(2, kit.letters.n_vocab) if plain.allows(t)]
            likely = [t for t in allowed if kit.letters.pieces[t] in b"abc() \n"]
            if not allowed:
                break
            token = int(rng.choice(likely if likely and rng.random() < 0.8 else allowed))
            plain.accept(token)
            quick.accept(token)
    except ConstraintFailed:
        pass


def test_lexemes_change_nothing_but_the_cost(kit: Any) -> None:
    check_cut(kit)


def test_a_json_grammar_is_cut_into_whole_names_and_numbers() -> None:
    grammar = parse(JSON)
    lines = list(Writer(grammar, lexemes(grammar)).lines())
    rules = [line for line in lines if line[0] in "rg"]
    assert not [line for line in rules if "x{30}" in line], "digits outside a lexeme"


def test_a_grammar_too_large_to_look_at_is_cut_into_characters() -> None:
    rules = "\n".join(f'r{i} ::= "a" r{(i + 1) % 400} | "b"' for i in range(400))
    assert lexemes(parse(f"root ::= r0\n{rules}")) is None
    assert lexemes(parse('root ::= "(" root ")" | (([a-z]{0,900}){0,2} "x"){0,2}')) is None
