"""Output under a JSON schema against free output: the same model, as many tokens, in one run."""

import asyncio
from typing import Any, NamedTuple

from bench import servers
from bench.load import counters, together
from bench.measure import median, table

N_TOKENS = 160
TOPICS = ["a small town", "a school", "a ship", "an old factory"]
_TEXT = {"type": "string", "minLength": 1, "maxLength": 24}
_PERSON = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "occupation": _TEXT,
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "status": {"enum": ["employed", "retired", "studying"]},
        "languages": {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "occupation", "age", "status", "languages"],
    "additionalProperties": False,
}
#: More people than fit into ``N_TOKENS``: every answer is cut off at the same length.
SCHEMA = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": _PERSON, "minItems": 40}},
    "required": ["people"],
    "additionalProperties": False,
}


class Run(NamedTuple):
    """Tokens a second from the first request to the last token, of all tokens and of the sampled
    ones alone, and the median wait for the first text in seconds."""

    rate: float
    chosen_rate: float
    first_s: float


def _bodies(n: int, form: dict[str, Any]) -> list[dict[str, Any]]:
    chat = "<|im_start|>user\nDescribe the people of {} as JSON.<|im_end|>\n<|im_start|>assistant\n"
    return [
        {
            "prompt": chat.format(topic),
            "n_predict": N_TOKENS,
            "temperature": 0,
            "cache_prompt": False,
            **form,
        }
        for topic in TOPICS[:n]
    ]


def _run(url: str, n: int, form: dict[str, Any]) -> Run:
    before = counters(url)
    answers = asyncio.run(together(url, "/completion", _bodies(n, form)))
    counted = counters(url).since(before)
    if any(a.last["tokens_predicted"] != N_TOKENS for a in answers):
        raise RuntimeError("an answer has not the length that was asked for")
    seconds = max(a.ended for a in answers) - min(a.sent for a in answers)
    return Run(
        counted.predicted / seconds, counted.chosen / seconds, median([a.ttft for a in answers])
    )


def _median(runs: list[Run]) -> Run:
    return Run(*(median(column) for column in zip(*runs, strict=True)))


def report(threads: str, rounds: int = 3) -> None:
    """Prints rates and ratios for one stream and four; the two forms take turns."""
    forms: dict[str, dict[str, Any]] = {
        "free": {"ignore_eos": True},
        "schema": {"json_schema": SCHEMA},
    }
    runs: dict[tuple[str, int], list[Run]] = {}
    with servers.corral("--threads", threads) as url:
        for form in forms.values():
            _run(url, 1, form)  # what happens once is not measured: the schema is compiled
        for _ in range(rounds):
            for n in (1, 4):
                for name, form in forms.items():
                    runs.setdefault((name, n), []).append(_run(url, n, form))
    rows = []
    for n in (1, 4):
        free, schema = (_median(runs[name, n]) for name in forms)
        ratios = [b.rate / a.rate for a, b in zip(runs["free", n], runs["schema", n], strict=True)]
        rows.append(
            [
                n,
                f"{free.rate:.0f}",
                f"{schema.rate:.0f}",
                f"{median(ratios):.2f}",
                f"{schema.chosen_rate:.0f}",
                f"{schema.chosen_rate / free.rate:.2f}",
                f"{1 - schema.chosen_rate / schema.rate:.0%}",
                f"{free.first_s * 1e3:.0f}",
                f"{schema.first_s * 1e3:.0f}",
            ]
        )
    table(
        f"A JSON schema against free text, {N_TOKENS} tokens, threads {threads}, "
        f"median of {rounds}",
        [
            "streams",
            "free tok/s",
            "schema tok/s",
            "schema/free",
            "sampled tok/s",
            "sampled/free",
            "not sampled",
            "free ttft ms",
            "schema ttft ms",
        ],
        rows,
    )
