"""The fields in which settings are typed: what they are called, and in what order they stand."""

from typing import Literal, TypeAlias

from msgspec import Struct

from corral.frontend.words import later

Kind: TypeAlias = Literal["text", "lines", "number", "whole", "switch", "names", "json", "form"]


class Knob(Struct, frozen=True):
    """One field. ``hint`` says what a person may not know of it."""

    name: str
    label: str
    kind: Kind
    hint: str = ""


class Group(Struct, frozen=True):
    """Fields under one heading; ``is_rare``: folded away while none of them is set."""

    title: str
    knobs: tuple[Knob, ...]
    is_rare: bool = False


_END = later("one per line; \\n: a line end")
#: In the order in which they are shown.
GROUPS = (
    Group(
        later("Words"),
        (
            Knob("system", later("System prompt"), "text"),
            Knob("prefix", later("The reply begins with"), "text"),
            Knob("stop", later("Stop texts"), "lines", _END),
        ),
    ),
    Group(
        later("Sampling"),
        (
            Knob("temperature", later("Temperature"), "number"),
            Knob("top_k", later("Top-k"), "whole", later("0: all")),
            Knob("top_p", later("Top-p"), "number"),
            Knob("min_p", later("Min-p"), "number"),
            Knob("seed", later("Seed"), "whole", later("-1: random")),
            Knob("max_tokens", later("Max tokens"), "whole", later("-1: any")),
        ),
    ),
    Group(
        later("Thinking"),
        (
            Knob("enable_thinking", later("Thinks before it replies"), "switch"),
            Knob("thinking_budget", later("Thinking budget"), "whole", later("-1: no limit")),
        ),
    ),
    Group(
        later("What the reply must look like"),
        (Knob("form", later("Shape"), "form"),),
    ),
    Group(
        later("Penalties"),
        (
            Knob("repeat_penalty", later("Repeat penalty"), "number", later("1: none")),
            Knob("repeat_last_n", later("Repeat window"), "whole", later("-1: all")),
            Knob("presence_penalty", later("Presence penalty"), "number"),
            Knob("frequency_penalty", later("Frequency penalty"), "number"),
            Knob("dry_multiplier", later("DRY multiplier"), "number", later("0: off")),
            Knob("dry_base", later("DRY base"), "number"),
            Knob("dry_allowed_length", later("DRY allowed length"), "whole"),
            Knob("dry_penalty_last_n", later("DRY window"), "whole", later("-1: all")),
            Knob("dry_sequence_breakers", later("DRY breakers"), "json", later("A JSON list")),
        ),
        is_rare=True,
    ),
    Group(
        later("More about sampling"),
        (
            Knob("typical_p", later("Typical-p"), "number", later("1: off")),
            Knob("top_n_sigma", later("Top-n-sigma"), "number", later("-1: off")),
            Knob("xtc_probability", later("XTC probability"), "number", later("0: off")),
            Knob("xtc_threshold", later("XTC threshold"), "number"),
            Knob("dynatemp_range", later("Dynamic temperature range"), "number", later("0: off")),
            Knob("dynatemp_exponent", later("Dynamic temperature exponent"), "number"),
            Knob("mirostat", later("Mirostat"), "whole", later("0: off, 1 or 2")),
            Knob("mirostat_tau", later("Mirostat tau"), "number"),
            Knob("mirostat_eta", later("Mirostat eta"), "number"),
            Knob("adaptive_target", later("Adaptive target"), "number", later("-1: off")),
            Knob("adaptive_decay", later("Adaptive decay"), "number"),
            Knob("min_keep", later("Keep at least"), "whole"),
            Knob("samplers", later("Order of samplers"), "names", later("Names between ;")),
            Knob("logit_bias", later("Token bias"), "json", later('JSON: {"token": bias}')),
        ),
        is_rare=True,
    ),
    Group(
        later("More about the end"),
        (
            Knob("ignore_eos", later("Go on after the end"), "switch"),
            Knob("n_indent", later("End at a line indented less than"), "whole"),
            Knob("t_max_predict_ms", later("End after milliseconds"), "whole", later("-1: none")),
            Knob("context_shift", later("Forget the oldest when full"), "switch"),
            Knob("n_keep", later("Tokens never forgotten"), "whole", later("-1: the prompt")),
            Knob("n_discard", later("Forgotten at once"), "whole", later("0: half")),
        ),
        is_rare=True,
    ),
)
KNOBS = {knob.name: knob for group in GROUPS for knob in group.knobs}
#: Fields of chats only; presets do not have them.
OF_CHATS = ("enable_thinking", "thinking_budget")
#: Texts that may be said to be none, where the preset has one.
MAY_BE_NONE = ("system", "prefix", "stop")
#: What the reply must look like, and which of these want a text beside them.
SHAPES = {
    "text": later("Free text"),
    "json_object": later("Any JSON object"),
    "json_schema": later("JSON that fits a schema"),
    "grammar": later("A GBNF grammar"),
    "regex": later("A regular expression"),
    "lark": later("A Lark grammar"),
}
WITH_SOURCE = ("json_schema", "grammar", "regex", "lark")
