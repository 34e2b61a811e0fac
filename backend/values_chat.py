"""What the text of a chat's settings may be; see ``values``."""

from typing import Literal, TypeAlias

from corral.backend.jsonvalue import value_of

#: Whether the model is to reason; auto: as its template has it.
Reasoning: TypeAlias = Literal["auto", "on", "off"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

#: The formats that llama.cpp writes without a template, by their names.
FORMATS = frozenset(
    (
        *("bailing", "bailing-think", "bailing2", "chatglm3", "chatglm4", "chatml", "command-r"),
        *("deepseek", "deepseek-ocr", "deepseek2", "deepseek3", "exaone-moe", "exaone3", "exaone4"),
        *("falcon3", "gemma", "gigachat", "glmedge", "gpt-oss", "granite", "granite-4.0"),
        *("granite-4.1", "grok-2", "hunyuan-dense", "hunyuan-moe", "hunyuan-vl", "kimi-k2"),
        *("llama2", "llama2-sys", "llama2-sys-bos", "llama2-sys-strip", "llama3", "llama4"),
        *("megrez", "minicpm", "mistral-v1", "mistral-v3", "mistral-v3-tekken", "mistral-v7"),
        *("mistral-v7-tekken", "monarch", "openchat", "orion", "pangu-embedded", "phi3", "phi4"),
        *("rwkv-world", "seed_oss", "smolvlm", "solar-open", "vicuna", "vicuna-orca", "yandex"),
        "zephyr",
    )
)


def chat_template(text: str) -> str:
    """Jinja, or the name of one of ``FORMATS``."""
    if text and text not in FORMATS and "{{" not in text and "{%" not in text:
        raise ValueError(f"must be a Jinja template or one of {', '.join(sorted(FORMATS))}")
    return text


def variables(text: str) -> str:
    """A JSON object; whether it is one that templates can be given shows here."""
    try:
        found = value_of(text or "{}")
    except ValueError:
        raise ValueError("must be a JSON object: it is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object")
    if "messages" in found:
        raise ValueError("must not hold messages")
    if not isinstance(found.get("enable_thinking", False), bool):
        raise ValueError("must have true or false as enable_thinking")
    return text
