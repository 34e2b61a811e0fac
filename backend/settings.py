"""Every knob: its default, flags, environment name and help. The only reader of argv and environment.

A flag beats the environment; ``CORRAL_X`` beats llama-server's ``LLAMA_ARG_X``.
"""

import argparse
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from corral.backend.errors import Refused

Pooling: TypeAlias = Literal["none", "mean", "cls", "last", "rank"]


def _between(low: float, high: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(f"must be between {low:.10g} and {high:.10g}")
        return value

    return parse


# Counts end up in 32-bit integers of C.
_count = _between(0, 2**31 - 1)
_positive = _between(1, 2**31 - 1)


def _auto(high: int) -> Callable[[str], int]:
    """``auto``, ``0`` or ``-1`` are 0; anything else a number from 1 to ``high``."""

    def parse(text: str) -> int:
        return 0 if text in ("auto", "0", "-1") else int(_between(1, high)(text))

    return parse


def _flag(text: str) -> bool:
    if text.lower() in ("1", "on", "true", "yes", "enabled"):
        return True
    if text.lower() in ("0", "off", "false", "no", "disabled"):
        return False
    raise ValueError("must be on or off")


def _auto_flag(text: str) -> bool | None:
    return None if text == "auto" else _flag(text)


def _pooling(text: str) -> str:
    if text.lower() not in ("none", "mean", "cls", "last", "rank"):
        raise ValueError("must be none, mean, cls, last or rank")
    return text.lower()


def _level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("must be debug, info, warning or error")
    return text.lower()


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(k.strip() for k in text.split(",") if k.strip())
    if not keys:
        raise ValueError("must hold at least one key")
    return keys


def _adapters(text: str) -> tuple[tuple[Path, float], ...]:
    """``FILE`` or ``FILE:SCALE``, separated by commas."""
    found = []
    for item in filter(None, text.split(",")):
        name, colon, scale = item.rpartition(":")
        try:
            found.append((Path(name), float(scale)) if colon else (Path(item), 1.0))
        except ValueError:  # a colon that belongs to the name
            found.append((Path(item), 1.0))
    if not found or not all(math.isfinite(scale) for _, scale in found):
        raise ValueError("must name files, each with a finite scale or none")
    return tuple(found)


def _knob(
    default: Any,
    flags: str,
    group: str,
    help: str,
    parse: Callable[[str], Any] = str,
    env: str = "",
) -> Any:
    meta = {"flags": flags.split(), "group": group, "help": help, "parse": parse, "env": env}
    return dataclasses.field(default=default, metadata=meta)


def default_data_dir() -> Path:
    """Where conversations are kept unless told otherwise: XDG's data folder."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "corral"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The server's configuration; see ``docs/settings.md``."""

    # fmt: off
    model: Path | None = _knob(None, "-m --model", "Model", "GGUF file to serve; default: the embedded model when it is installed", Path)
    alias: str = _knob("", "-a --alias", "Model", "name of the model in the API; default: the file's name")
    check_tensors: bool = _knob(False, "--check-tensors", "Model", "check the weights for invalid values while loading", _flag)
    fake: bool = _knob(False, "--fake", "Model", "serve a scripted engine without a model, for tests of clients", _flag)

    n_ctx: int = _knob(0, "-c --ctx-size", "Context", "context size in tokens, shared by all slots; 0: the model's own", _count)
    n_slots: int = _knob(0, "-np --parallel", "Context", "requests computed at the same time; auto: 4", _auto(64), "N_PARALLEL")
    max_queue: int = _knob(64, "--max-queue", "Context", "requests that may wait for a slot; more are refused with 503", _count)
    n_batch: int = _knob(512, "-b --batch-size", "Context", "most prompt tokens computed in one step", _positive, "BATCH")
    step_target_ms: int = _knob(0, "--step-target-ms", "Context", "longest step while answers are streaming, in milliseconds; auto: about four times a step without prompts", _auto(60_000))
    n_threads: int = _knob(0, "-t --threads", "Context", "compute threads; auto: all cores, adapted while running", _auto(512))

    flash_attn: bool | None = _knob(None, "-fa --flash-attn", "Context", "flash attention: on, off or auto; auto: on for a GPU, off for a CPU, where it is the slower one", _auto_flag)

    lora: tuple[tuple[Path, float], ...] = _knob((), "--lora --lora-scaled", "Memory", "LoRA adapters, separated by commas: FILE, or FILE:SCALE", _adapters)
    lora_init_without_apply: bool = _knob(False, "--lora-init-without-apply", "Memory", "load the adapters with scale 0, to be set later", _flag)
    slot_save_path: Path | None = _knob(None, "--slot-save-path", "Memory", "folder in which clients may save and restore slots; default: they may not", Path)
    cache_ram: int = _knob(2048, "-cram --cache-ram", "Memory", "MiB of host memory for prefixes that had to leave the cache; 0: none, -1: no limit", _between(-1, 2**31 - 1))
    cache_disk: Path | None = _knob(None, "--cache-disk", "Memory", "folder for prefixes that shall survive a restart; default: none are kept", Path)
    cache_disk_mb: int = _knob(4096, "--cache-disk-mb", "Memory", "MiB that folder may hold", _positive)

    embeddings: bool = _knob(False, "--embeddings --embedding", "Embeddings", "compute vectors of texts too, with a model made to generate; one made for vectors needs no flag", _flag)
    pooling: Pooling | None = _knob(None, "--pooling", "Embeddings", "how the vectors of its tokens become one of a text: none, mean, cls, last or rank; default: the model's own", _pooling)
    reranking: bool = _knob(False, "--reranking --rerank", "Embeddings", "score documents for a query, as pooling rank; a model whose file says that it does needs no flag", _flag)
    embd_normalize: int = _knob(2, "--embd-normalize", "Embeddings", "length of the vectors: 2 Euclidean, 1 taxicab, another P that norm, 0 the largest number is 32760, -1 as computed", _between(-1, 2**31 - 1))
    n_ubatch: int = _knob(0, "-ub --ubatch-size", "Embeddings", "most tokens of a text that the model must see at once; 0: what the model takes, up to 8192", _count, "UBATCH")

    host: str = _knob("127.0.0.1", "--host", "Server", "address to listen on")
    port: int = _knob(8080, "--port", "Server", "port to listen on; 0: any free one", _between(0, 65535))
    api_keys: tuple[str, ...] = _knob((), "--api-key", "Server", "keys that may use the server, separated by commas; default: none needed", _keys)
    max_body_mb: int = _knob(32, "--max-body-mb", "Server", "largest request body in MiB; larger ones are refused with 413", _positive)
    ping_s: float = _knob(15.0, "--sse-ping-interval", "Server", "seconds of silence in a stream before a comment line is sent", _between(0.05, 1e6, float))
    drain_timeout_s: float = _knob(30.0, "--drain-timeout", "Server", "seconds that running requests may take to finish after SIGTERM", _between(0, 1e6, float))
    data_dir: Path | None = _knob(None, "--data-dir", "Server", "folder for conversations; default: corral in the user's data folder", Path)
    log_level: str = _knob("info", "--log-level", "Server", "least serious messages shown: debug, info, warning or error", _level)

    max_tokens: int = _knob(-1, "-n --predict --n-predict", "Sampling defaults", "most tokens to generate; -1: to the end of the context", _between(-1, 2**31 - 1), "N_PREDICT")
    temperature: float = _knob(0.8, "--temp --temperature", "Sampling defaults", "temperature; 0: always the likeliest token", _between(0, 100, float))
    top_k: int = _knob(40, "--top-k", "Sampling defaults", "keep the K likeliest tokens; 0: off", _between(0, 2**31 - 1))
    top_p: float = _knob(0.95, "--top-p", "Sampling defaults", "keep the likeliest tokens that add up to P; 1: off", _between(0, 1, float))
    min_p: float = _knob(0.05, "--min-p", "Sampling defaults", "drop tokens less likely than P times the likeliest; 0: off", _between(0, 1, float))
    dynatemp_range: float = _knob(0.0, "--dynatemp-range", "Sampling defaults", "temperature goes up and down by this much, as the choice is unclear or clear; 0: off", _between(0, 100, float))
    dynatemp_exponent: float = _knob(1.0, "--dynatemp-exp", "Sampling defaults", "how temperature follows the entropy", _between(0, 100, float))
    typical_p: float = _knob(1.0, "--typical --typical-p", "Sampling defaults", "keep tokens of typical surprise that add up to P; 1: off", _between(0, 1, float))
    top_n_sigma: float = _knob(-1.0, "--top-nsigma --top-n-sigma", "Sampling defaults", "keep logits within N standard deviations of the largest; -1: off", _between(-1, 100, float))
    xtc_probability: float = _knob(0.0, "--xtc-probability", "Sampling defaults", "how often the likeliest tokens are left out; 0: off", _between(0, 1, float))
    xtc_threshold: float = _knob(0.1, "--xtc-threshold", "Sampling defaults", "tokens likelier than this may be left out, but the last of them", _between(0, 1, float))
    dry_multiplier: float = _knob(0.0, "--dry-multiplier", "Sampling defaults", "penalty for going on with a repetition; 0: off", _between(0, 100, float))
    dry_base: float = _knob(1.75, "--dry-base", "Sampling defaults", "that penalty grows by this with each token repeated", _between(1, 100, float))
    dry_allowed_length: int = _knob(2, "--dry-allowed-length", "Sampling defaults", "tokens that may be repeated freely", _count)
    dry_penalty_last_n: int = _knob(64, "--dry-penalty-last-n", "Sampling defaults", "tokens looked at for repetitions; 0: off, -1: the context", _between(-1, 2**31 - 1))
    mirostat: int = _knob(0, "--mirostat", "Sampling defaults", "keep the surprise steady, version 1 or 2; 0: off", _between(0, 2))
    mirostat_tau: float = _knob(5.0, "--mirostat-ent", "Sampling defaults", "the surprise that mirostat aims at", _between(0, 100, float))
    mirostat_eta: float = _knob(0.1, "--mirostat-lr", "Sampling defaults", "how fast mirostat corrects itself", _between(0, 1, float))
    adaptive_target: float = _knob(-1.0, "--adaptive-target", "Sampling defaults", "keep the probability of chosen tokens near this (sampler adaptive_p); -1: off", _between(-1, 1, float))
    adaptive_decay: float = _knob(0.9, "--adaptive-decay", "Sampling defaults", "how slowly adaptive_p forgets", _between(0, 0.99, float))
    ignore_eos: bool = _knob(False, "--ignore-eos", "Sampling defaults", "go on when the model ends its answer", _flag)
    context_shift: bool = _knob(False, "--context-shift", "Sampling defaults", "forget the oldest tokens when the context is full, instead of ending", _flag)
    n_keep: int = _knob(0, "--keep", "Sampling defaults", "first tokens that a context shift keeps; -1: the prompt", _between(-1, 2**31 - 1))
    repeat_last_n: int = _knob(64, "--repeat-last-n", "Sampling defaults", "tokens looked at for penalties; 0: off, -1: the context", _between(-1, 2**31 - 1))
    repeat_penalty: float = _knob(1.0, "--repeat-penalty", "Sampling defaults", "penalty for repeated tokens; 1: off", _between(1e-6, 100, float))
    presence_penalty: float = _knob(0.0, "--presence-penalty", "Sampling defaults", "penalty for tokens that occurred; 0: off", _between(-100, 100, float))
    frequency_penalty: float = _knob(0.0, "--frequency-penalty", "Sampling defaults", "penalty for each occurrence of a token; 0: off", _between(-100, 100, float))
    seed: int = _knob(-1, "-s --seed", "Sampling defaults", "random seed; -1: a new one for each request", _between(-1, 2**32 - 2))
    # fmt: on

    @property
    def slots(self) -> int:
        """Requests computed at the same time, the default filled in."""
        return self.n_slots or 4


def _env_names(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Environment names of a knob, strongest first: ``CORRAL_CTX_SIZE``, ``LLAMA_ARG_CTX_SIZE``."""
    long = next(f for f in field.metadata["flags"] if f.startswith("--"))
    word = long[2:].replace("-", "_").upper()
    if field.name == "api_keys":
        return ("CORRAL_API_KEY", "LLAMA_API_KEY")
    return (f"CORRAL_{word}", f"LLAMA_ARG_{field.metadata['env'] or word}")


def _shown(field: dataclasses.Field[Any]) -> str:
    """A knob's default as a user would write it; empty where the help text says what it is."""
    if not field.default and "auto:" in field.metadata["help"]:
        return "auto"
    if field.default is None or field.default in ("", ()):
        return ""
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return str(field.default)


class Knob(NamedTuple):
    """One setting, as documentation shows it."""

    name: str
    flags: list[str]
    env: tuple[str, ...]
    default: str
    help: str
    group: str


def knobs() -> list[Knob]:
    """Every knob, in the order of ``--help``."""
    return [
        Knob(f.name, m["flags"], _env_names(f), _shown(f), m["help"], m["group"])
        for f in dataclasses.fields(Settings)
        for m in (f.metadata,)
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every knob to ``parser``, grouped; a flag not given leaves no trace in the result."""
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        meta = field.metadata
        group = groups.setdefault(meta["group"], None) or parser.add_argument_group(meta["group"])
        groups[meta["group"]] = group
        shown = f" (default: {_shown(field)})" if _shown(field) else ""
        text = f"{meta['help']}{shown} [{_env_names(field)[0]}]".replace("%", "%%")
        more: dict[str, Any] = {"metavar": field.name.upper(), "help": text}
        if isinstance(field.default, bool):  # --check-tensors alone means on
            more |= {"nargs": "?", "const": "on"}
        group.add_argument(*meta["flags"], dest=field.name, default=argparse.SUPPRESS, **more)


def load(given: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Settings from parsed flags and the environment. Raises ``Refused`` naming the flag or variable."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        sources = [(field.metadata["flags"][-1], given.get(field.name))]
        sources += [(name, environ.get(name)) for name in _env_names(field)]
        # A variable that is set to nothing counts as not set; a flag does not.
        sources = [s for i, s in enumerate(sources) if s[1] is not None and (s[1] != "" or i == 0)]
        name, text = sources[0] if sources else ("", None)
        if text is None:
            continue
        try:
            values[field.name] = field.metadata["parse"](str(text))
        except ValueError as error:
            reason = str(error) if str(error).startswith("must") else "is not a valid value"
            raise Refused(f"{name} {reason}: {text!r}", param=field.name) from None
    return Settings(**values)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Settings from command-line arguments and an environment."""
    parser = argparse.ArgumentParser(prog="corral serve", allow_abbrev=False)
    add_arguments(parser)
    return load(vars(parser.parse_args(argv)), environ)
