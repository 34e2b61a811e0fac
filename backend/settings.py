"""Every knob: its default, flags, environment names and help; ``commandline`` reads them."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from corral.backend.media.hosts import Allowed
from corral.backend.values import (
    ReasoningFormat,
    adapters,
    auto,
    auto_flag,
    between,
    breaker,
    count,
    file_text,
    flag,
    json_schema,
    keys,
    letters,
    level,
    logit_bias,
    pooling,
    positive,
    samplers,
    text_once,
)
from corral.backend.values_chat import Effort, Reasoning, chat_template, variables
from corral.backend.values_http import addresses, key_file, names, prefix, url_hosts
from corral.backend.values_llama import (
    MAX_DEVICES,
    MAX_LAYERS,
    CacheType,
    LoadMode,
    Numa,
    Override,
    RopeScaling,
    SplitMode,
    choice,
    devices,
    gpu_layers,
    n_tokens,
    or_default,
    overrides,
    shares,
    tensor_buffers,
)

Pooling: TypeAlias = Literal["none", "mean", "cls", "last", "rank"]


def _knob(
    default: Any,
    flags: str,
    group: str,
    help: str,
    parse: Callable[[str], Any] = str,
    *,
    env: str = "",
    off: str = "",
    alone: str = "",
    many: bool = False,
    also: Mapping[str, str | Callable[[str], str]] | None = None,
) -> Any:
    """A setting.

    ``flags`` are its spellings, ``off`` those that switch it off, ``env`` llama-server's name of
    its variable. ``alone`` is what a flag without a value means; switches have it. ``also`` are
    spellings with a meaning of their own: a text is what they stand for, without a value of theirs;
    a function makes the text out of the value given. ``many``: it may be repeated, and ``parse``
    gives a tuple.
    """
    others = {f: meaning for names, meaning in (also or {}).items() for f in names.split()}
    meta = {
        "flags": flags.split(),
        "group": group,
        "help": help,
        "parse": parse,
        "env": env,
        "also": dict.fromkeys(off.split(), "off") | others,
        "alone": "on" if isinstance(default, bool) else alone,
        "many": many,
    }
    return dataclasses.field(default=default, metadata=meta)


def default_data_dir() -> Path:
    """Where conversations are kept unless told otherwise: XDG's data folder."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "corral"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The server's configuration; see ``docs/settings.md``."""

    # fmt: off
    model: Path | None = _knob(None, "-m --model", "Model", "GGUF file to serve; default: the embedded model when it is installed", Path, env="LLAMA_ARG_MODEL")
    alias: str = _knob("", "-a --alias", "Model", "name of the model in the API, and other names behind commas; default: the file's name", names, env="LLAMA_ARG_ALIAS")
    tags: str = _knob("", "--tags", "Model", "words for the model in /v1/models, separated by commas; they change nothing", names, env="LLAMA_ARG_TAGS")
    check_tensors: bool = _knob(False, "--check-tensors", "Model", "check the weights for invalid values while loading", flag)
    fake: bool = _knob(False, "--fake", "Model", "serve a scripted engine without a model, for tests of clients", flag)

    n_ctx: int = _knob(0, "-c --ctx-size", "Context", "context size in tokens, shared by all slots; 0: the model's own", count, env="LLAMA_ARG_CTX_SIZE")
    n_slots: int = _knob(0, "-np --parallel", "Context", "requests computed at the same time; auto: 4", auto(64), env="LLAMA_ARG_N_PARALLEL")
    max_queue: int = _knob(64, "--max-queue", "Context", "requests that may wait for a slot; more are refused with 503", count)
    n_batch: int = _knob(512, "-b --batch-size", "Context", "most prompt tokens computed in one step", positive, env="LLAMA_ARG_BATCH")
    step_target_ms: int = _knob(0, "--step-target-ms", "Context", "longest step while answers are streaming, in milliseconds; auto: about four times a step without prompts", auto(60_000))
    n_threads: int = _knob(0, "-t --threads", "Context", "compute threads; auto: all cores, adapted while running", auto(512), env="LLAMA_ARG_THREADS")
    n_threads_batch: int = _knob(0, "-tb --threads-batch", "Context", "compute threads of steps with more than one token; auto: as --threads", auto(512))

    flash_attn: bool | None = _knob(None, "-fa --flash-attn", "Context", "flash attention: on, off or auto; auto: on for a GPU, off for a CPU, where it is the slower one", auto_flag, alone="on", env="LLAMA_ARG_FLASH_ATTN")

    n_gpu_layers: int = _knob(-1, "-ngl --gpu-layers --n-gpu-layers", "Loading", "layers computed by GPUs; -1, auto or all: all of them", gpu_layers, env="LLAMA_ARG_N_GPU_LAYERS")
    split_mode: SplitMode = _knob("layer", "-sm --split-mode", "Loading", "how several GPUs share the model: none, layer or row", choice(SplitMode), env="LLAMA_ARG_SPLIT_MODE")
    tensor_split: tuple[float, ...] = _knob((), "-ts --tensor-split", "Loading", "shares of the GPUs, as 3,1; default: by their free memory", shares, env="LLAMA_ARG_TENSOR_SPLIT")
    main_gpu: int = _knob(0, "-mg --main-gpu", "Loading", "GPU that has the whole model with --split-mode none", between(0, MAX_DEVICES - 1), env="LLAMA_ARG_MAIN_GPU")
    devices: tuple[str, ...] | None = _knob(None, "-dev --device", "Loading", "devices to use beside the CPU, separated by commas, or none; default: all; --list-devices names them", devices, env="LLAMA_ARG_DEVICE")
    cpu_moe: bool = _knob(False, "-cmoe --cpu-moe", "Loading", "keep the weights of all experts with the CPU", flag, env="LLAMA_ARG_CPU_MOE")
    n_cpu_moe: int = _knob(0, "-ncmoe --n-cpu-moe", "Loading", "layers, from the first, whose experts stay with the CPU", between(0, MAX_LAYERS), env="LLAMA_ARG_N_CPU_MOE")
    n_cpu_ffn: int = _knob(0, "-ncffn --n-cpu-ffn", "Loading", "layers, from the first, whose feed-forward weights stay with the CPU", between(0, MAX_LAYERS), env="LLAMA_ARG_N_CPU_FFN")
    override_tensors: tuple[tuple[str, str], ...] = _knob((), "-ot --override-tensor", "Loading", "where weights go whose name matches: PATTERN=BUFFER, separated by commas; may be repeated", tensor_buffers, many=True, env="LLAMA_ARG_OVERRIDE_TENSOR")
    load_mode: LoadMode = _knob("auto", "-lm --load-mode", "Loading", "how the file is read: auto, none (copied), mmap, mlock (copied and locked in memory), mmap+mlock, or dio (past the system's cache)", choice(LoadMode), env="LLAMA_ARG_LOAD_MODE", also={"-dio --direct-io": "dio"})
    mmap: bool | None = _knob(None, "--mmap", "Loading", "map the file into memory, or copy it, as --load-mode; default: as that says", flag, alone="on", env="LLAMA_ARG_MMAP", off="--no-mmap")
    mlock: bool = _knob(False, "--mlock", "Loading", "lock the weights in memory, as --load-mode", flag, env="LLAMA_ARG_MLOCK")
    repack: bool = _knob(True, "--repack", "Loading", "rearrange weights for the CPU's widest instructions", flag, env="LLAMA_ARG_REPACK", off="-nr --no-repack")
    no_host: bool = _knob(False, "--no-host", "Loading", "leave out the host's pinned buffers, so that other layouts can be used", flag, env="LLAMA_ARG_NO_HOST")
    op_offload: bool = _knob(True, "--op-offload", "Loading", "let GPUs compute large batches of weights that the CPU keeps", flag, off="--no-op-offload")
    numa: Numa | None = _knob(None, "--numa", "Loading", "threads on NUMA systems: distribute, isolate or numactl; default: as the system has it", choice(Numa), env="LLAMA_ARG_NUMA")
    override_kv: tuple[Override, ...] = _knob((), "--override-kv", "Loading", "metadata in place of the file's: KEY=TYPE:VALUE, the type int, float, bool or str; separated by commas; may be repeated", overrides, many=True)
    warmup: bool = _knob(True, "--warmup", "Loading", "compute something before the first request; that is also when a CPU that lacks instructions is found out", flag, off="--no-warmup")

    rope_scaling: RopeScaling | None = _knob(None, "--rope-scaling", "Positions", "how positions are stretched past the training context: none, linear or yarn; default: the model's own", choice(RopeScaling), env="LLAMA_ARG_ROPE_SCALING_TYPE")
    rope_scale: float = _knob(0.0, "--rope-scale", "Positions", "times the context is stretched; 0: the model's own", or_default(0, 1e-3, 1e6), env="LLAMA_ARG_ROPE_SCALE")
    rope_freq_base: float = _knob(0.0, "--rope-freq-base", "Positions", "base of the frequencies of positions; 0: the model's own", or_default(0, 1.001, 1e15), env="LLAMA_ARG_ROPE_FREQ_BASE")
    rope_freq_scale: float = _knob(0.0, "--rope-freq-scale", "Positions", "one over --rope-scale; 0: the model's own", or_default(0, 1e-6, 1e3), env="LLAMA_ARG_ROPE_FREQ_SCALE")
    yarn_orig_ctx: int = _knob(0, "--yarn-orig-ctx", "Positions", "context of the training before YaRN stretched it; 0: the model's own", count, env="LLAMA_ARG_YARN_ORIG_CTX")
    yarn_ext_factor: float = _knob(-1.0, "--yarn-ext-factor", "Positions", "YaRN's share of extrapolation, 0: interpolation only; -1: the model's own", or_default(-1, 0, 1e3), env="LLAMA_ARG_YARN_EXT_FACTOR")
    yarn_attn_factor: float = _knob(-1.0, "--yarn-attn-factor", "Positions", "YaRN's factor of the attention, in force where --yarn-ext-factor is 0; -1: the model's own", or_default(-1, 0, 1e3), env="LLAMA_ARG_YARN_ATTN_FACTOR")
    yarn_beta_slow: float = _knob(-1.0, "--yarn-beta-slow", "Positions", "turns below which YaRN interpolates; -1: the model's own", or_default(-1, 1e-3, 1e6), env="LLAMA_ARG_YARN_BETA_SLOW")
    yarn_beta_fast: float = _knob(-1.0, "--yarn-beta-fast", "Positions", "turns above which YaRN extrapolates; -1: the model's own", or_default(-1, 1e-3, 1e6), env="LLAMA_ARG_YARN_BETA_FAST")

    cache_type_k: CacheType = _knob("f16", "-ctk --cache-type-k", "Memory", "type of the cache's keys: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1", choice(CacheType), env="LLAMA_ARG_CACHE_TYPE_K")
    cache_type_v: CacheType = _knob("f16", "-ctv --cache-type-v", "Memory", "type of the cache's values, likewise; quantised ones switch flash attention on", choice(CacheType), env="LLAMA_ARG_CACHE_TYPE_V")
    kv_offload: bool = _knob(True, "-kvo --kv-offload", "Memory", "keep the cache with the GPUs", flag, env="LLAMA_ARG_KV_OFFLOAD", off="-nkvo --no-kv-offload")
    lora: tuple[tuple[Path, float], ...] = _knob((), "--lora --lora-scaled", "Memory", "LoRA adapters, separated by commas: FILE, or FILE:SCALE; may be repeated", adapters, many=True)
    lora_init_without_apply: bool = _knob(False, "--lora-init-without-apply", "Memory", "load the adapters with scale 0, to be set later", flag)
    slot_save_path: Path | None = _knob(None, "--slot-save-path", "Memory", "folder in which clients may save and restore slots; default: they may not", Path)
    cache_ram: int = _knob(2048, "-cram --cache-ram", "Memory", "MiB of host memory for prefixes that had to leave the cache; 0: none, -1: no limit", between(-1, 2**31 - 1), env="LLAMA_ARG_CACHE_RAM")
    cache_disk: Path | None = _knob(None, "--cache-disk", "Memory", "folder for prefixes that shall survive a restart; default: none are kept", Path)
    cache_disk_mb: int = _knob(4096, "--cache-disk-mb", "Memory", "MiB that folder may hold", positive)

    embeddings: bool = _knob(False, "--embeddings --embedding", "Embeddings", "compute vectors of texts too, with a model made to generate; one made for vectors needs no flag", flag, env="LLAMA_ARG_EMBEDDINGS")
    pooling: Pooling | None = _knob(None, "--pooling", "Embeddings", "how the vectors of its tokens become one of a text: none, mean, cls, last or rank; default: the model's own", pooling, env="LLAMA_ARG_POOLING")
    reranking: bool = _knob(False, "--reranking --rerank", "Embeddings", "score documents for a query, as pooling rank; a model whose file says that it does needs no flag", flag, env="LLAMA_ARG_RERANKING")
    embd_normalize: int = _knob(2, "--embd-normalize", "Embeddings", "length of the vectors: 2 Euclidean, 1 taxicab, another P that norm, 0 the largest number is 32760, -1 as computed", between(-1, 2**31 - 1))
    n_ubatch: int = _knob(0, "-ub --ubatch-size", "Embeddings", "most tokens of a text that the model must see at once; 0: what the model takes, up to 8192", count, env="LLAMA_ARG_UBATCH")

    mmproj: Path | None = _knob(None, "-mm --mmproj", "Pictures and sounds", "GGUF file of the projector that lets the model take pictures or sounds; default: it takes text only", Path, env="LLAMA_ARG_MMPROJ")
    mmproj_auto: bool = _knob(True, "--mmproj-auto", "Pictures and sounds", "load that projector", flag, env="LLAMA_ARG_MMPROJ_AUTO", off="--no-mmproj --no-mmproj-auto")
    mmproj_offload: bool = _knob(True, "--mmproj-offload", "Pictures and sounds", "let a GPU compute the projector", flag, env="LLAMA_ARG_MMPROJ_OFFLOAD", off="--no-mmproj-offload")
    image_min_tokens: int = _knob(-1, "--image-min-tokens", "Pictures and sounds", "fewest tokens of a picture, for projectors that take any size; -1: as the file has it", n_tokens, env="LLAMA_ARG_IMAGE_MIN_TOKENS")
    image_max_tokens: int = _knob(-1, "--image-max-tokens", "Pictures and sounds", "most tokens of a picture, likewise; -1: as the file has it", n_tokens, env="LLAMA_ARG_IMAGE_MAX_TOKENS")
    media_path: Path | None = _knob(None, "--media-path", "Pictures and sounds", "folder whose files requests may name, as file:picture.png; default: they may name none", Path)
    media_url_allow: tuple[Allowed, ...] = _knob((), "--media-url-allow", "Pictures and sounds", "hosts that pictures and sounds may be fetched from, separated by commas: [http://|https://]HOST[:PORT], the host a name, *.NAME for those below it, * for any, or an address; may be repeated; default: nothing is fetched", url_hosts, many=True)
    media_url_private: bool = _knob(False, "--media-url-private", "Pictures and sounds", "let those names lead into private networks and to this machine", flag)
    media_timeout_s: float = _knob(20.0, "--media-timeout", "Pictures and sounds", "seconds that fetching one may take, redirects included", between(0.05, 1e6, float))
    media_max_mib: int = _knob(20, "--media-max-mib", "Pictures and sounds", "largest file of a picture or sound in MiB", between(1, 1024))
    media_max_count: int = _knob(32, "--media-max-count", "Pictures and sounds", "most pictures and sounds in one request", count)
    image_max_megapixels: int = _knob(64, "--image-max-megapixels", "Pictures and sounds", "most pixels of a picture, in millions", between(1, 1000))
    media_cache_mib: int = _knob(256, "--media-cache-mib", "Pictures and sounds", "MiB of host memory for decoded pictures and sounds, and as much for what the projector made of them", between(0, 2**20))

    chat_template: str = _knob("", "--chat-template", "Chat", "Jinja source in place of the model's template, or the name of one of llama.cpp's formats, as llama3", chat_template, env="LLAMA_ARG_CHAT_TEMPLATE")
    chat_template_file: str = _knob("", "--chat-template-file", "Chat", "file of a Jinja template in place of the model's", file_text, env="LLAMA_ARG_CHAT_TEMPLATE_FILE")
    chat_template_kwargs: str = _knob("", "--chat-template-kwargs", "Chat", "JSON object of variables for the template; a request's come before them", variables, env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS")
    jinja: bool = _knob(True, "--jinja", "Chat", "render the template; off: llama.cpp tells its format and writes that, without tools", flag, env="LLAMA_ARG_JINJA", off="--no-jinja")
    prefill_assistant: bool = _knob(True, "--prefill-assistant", "Chat", "go on with a last message of the assistant, instead of closing it", flag, env="LLAMA_ARG_PREFILL_ASSISTANT", off="--no-prefill-assistant")
    fold_messages: bool = _knob(False, "--fold-messages", "Chat", "make a conversation that the template objects to fit: system messages go into the next user's, neighbours of one role become one", flag)
    trust_input: bool = _knob(False, "--trust-input", "Chat", "let special tokens in messages and tools count; else they are text, whatever they look like", flag)
    reasoning: Reasoning = _knob("auto", "-rea --reasoning", "Chat", "whether the model reasons before it answers: on, off, or auto, as its template has it", choice(Reasoning), env="LLAMA_ARG_REASONING")
    reasoning_effort: Effort | None = _knob(None, "--reasoning-effort", "Chat", "how much it reasons, for templates that know: none, minimal, low, medium, high, xhigh or max; default: as the template has it", choice(Effort), env="LLAMA_ARG_REASONING_EFFORT")
    reasoning_format: ReasoningFormat = _knob("auto", "--reasoning-format", "Chat", "where reasoning is shown: auto or deepseek (as reasoning_content), none (left in the text), or deepseek-legacy (both)", choice(ReasoningFormat), env="LLAMA_ARG_THINK")
    reasoning_preserve: bool | None = _knob(None, "--reasoning-preserve", "Chat", "show the model the reasoning of all earlier turns, for templates that can; default: as the template has it", flag, env="LLAMA_ARG_REASONING_PRESERVE", off="--no-reasoning-preserve", alone="on")
    skip_chat_parsing: bool = _knob(False, "--skip-chat-parsing", "Chat", "leave calls and reasoning in the content as the model writes them", flag, env="LLAMA_ARG_SKIP_CHAT_PARSING", off="--no-skip-chat-parsing")
    reasoning_budget: int = _knob(-1, "--reasoning-budget", "Chat", "most tokens of reasoning; 0: none, and templates are told so; -1: no limit", between(-1, 2**31 - 1), env="LLAMA_ARG_THINK_BUDGET")
    reasoning_budget_message: str = _knob("", "--reasoning-budget-message", "Chat", "what is written into the reasoning when its budget ends it", env="LLAMA_ARG_THINK_BUDGET_MESSAGE")

    host: str = _knob("127.0.0.1", "--host", "Server", "addresses to listen on, separated by commas; one that ends in .sock is the path of a UNIX socket", addresses, env="LLAMA_ARG_HOST")
    port: int = _knob(8080, "--port", "Server", "port to listen on; 0: any free one", between(0, 65535), env="LLAMA_ARG_PORT")
    reuse_port: bool = _knob(False, "--reuse-port", "Server", "let other processes listen at the same port, so that the system shares out connections", flag, env="LLAMA_ARG_REUSE_PORT")
    api_prefix: str = _knob("", "--api-prefix", "Server", "path in front of every route and page, as /corral", prefix, env="LLAMA_ARG_API_PREFIX")
    ssl_cert_file: Path | None = _knob(None, "--ssl-cert-file", "Server", "PEM file of the certificate and its chain; with --ssl-key-file the server speaks HTTPS only", Path, env="LLAMA_ARG_SSL_CERT_FILE")
    ssl_key_file: Path | None = _knob(None, "--ssl-key-file", "Server", "PEM file of the certificate's private key, without a password", Path, env="LLAMA_ARG_SSL_KEY_FILE")
    ui: bool = _knob(True, "--ui --webui", "Server", "serve the web UI", flag, env="LLAMA_ARG_UI", off="--no-ui --no-webui")
    slots_endpoint: bool = _knob(True, "--slots", "Server", "serve GET /slots", flag, env="LLAMA_ARG_ENDPOINT_SLOTS", off="--no-slots")
    timeout_s: float = _knob(3600.0, "-to --timeout", "Server", "seconds that a client may stand still, in the middle of a body or without taking an answer, before its request ends", between(0.05, 1e6, float), env="LLAMA_ARG_TIMEOUT")
    api_keys: tuple[str, ...] = _knob((), "--api-key", "Server", "keys that may use the server, separated by commas; may be repeated; default: none needed", keys, env="LLAMA_API_KEY", many=True)
    api_key_file: tuple[str, ...] = _knob((), "--api-key-file", "Server", "file of more keys, one a line; empty lines and those that begin with # do not count; may be repeated", key_file, env="LLAMA_ARG_API_KEY_FILE", many=True)
    max_body_mb: int = _knob(32, "--max-body-mb", "Server", "largest request body in MiB; larger ones are refused with 413", positive)
    ping_s: float = _knob(15.0, "--sse-ping-interval", "Server", "seconds of silence in a stream before a comment line is sent", between(0.05, 1e6, float), env="LLAMA_ARG_SSE_PING_INTERVAL")
    drain_timeout_s: float = _knob(30.0, "--drain-timeout", "Server", "seconds that running requests may take to finish after SIGTERM", between(0, 1e6, float))
    data_dir: Path | None = _knob(None, "--data-dir", "Server", "folder for conversations; default: corral in the user's data folder", Path)
    config: Path | None = _knob(None, "--config", "Server", "TOML file of settings, named as their long flags; flags and environment come before it", Path)
    log_level: str = _knob("info", "-lv --log-level --verbosity --log-verbosity", "Server", "least serious messages shown: debug, info, warning, error or none, or llama-server's 0 to 5; -v: debug, --log-disable: none", level, env="LLAMA_ARG_LOG_VERBOSITY", also={"-v --verbose --log-verbose": "debug", "--log-disable": "none"})
    log_file: Path | None = _knob(None, "--log-file", "Server", "file that messages are written to as well", Path, env="LLAMA_ARG_LOG_FILE")
    log_colors: bool | None = _knob(None, "--log-colors", "Server", "colours for warnings and errors: on, off or auto; auto: on in a terminal", auto_flag, alone="on", env="LLAMA_ARG_LOG_COLORS")
    log_prefix: bool = _knob(True, "--log-prefix", "Server", "begin messages with their level and origin", flag, env="LLAMA_ARG_LOG_PREFIX", off="--no-log-prefix")
    log_timestamps: bool = _knob(True, "--log-timestamps", "Server", "begin messages with the time", flag, env="LLAMA_ARG_LOG_TIMESTAMPS", off="--no-log-timestamps")

    max_tokens: int = _knob(-1, "-n --predict --n-predict", "Sampling defaults", "most tokens to generate; -1: to the end of the context", between(-1, 2**31 - 1), env="LLAMA_ARG_N_PREDICT")
    temperature: float = _knob(0.8, "--temp --temperature", "Sampling defaults", "temperature; 0: always the likeliest token", between(0, 100, float), env="LLAMA_ARG_TEMPERATURE")
    top_k: int = _knob(40, "--top-k", "Sampling defaults", "keep the K likeliest tokens; 0: off", between(0, 2**31 - 1), env="LLAMA_ARG_TOP_K")
    top_p: float = _knob(0.95, "--top-p", "Sampling defaults", "keep the likeliest tokens that add up to P; 1: off", between(0, 1, float), env="LLAMA_ARG_TOP_P")
    min_p: float = _knob(0.05, "--min-p", "Sampling defaults", "drop tokens less likely than P times the likeliest; 0: off", between(0, 1, float), env="LLAMA_ARG_MIN_P")
    dynatemp_range: float = _knob(0.0, "--dynatemp-range", "Sampling defaults", "temperature goes up and down by this much, as the choice is unclear or clear; 0: off", between(0, 100, float))
    dynatemp_exponent: float = _knob(1.0, "--dynatemp-exp", "Sampling defaults", "how temperature follows the entropy", between(0, 100, float))
    typical_p: float = _knob(1.0, "--typical --typical-p", "Sampling defaults", "keep tokens of typical surprise that add up to P; 1: off", between(0, 1, float))
    top_n_sigma: float = _knob(-1.0, "--top-nsigma --top-n-sigma", "Sampling defaults", "keep logits within N standard deviations of the largest; -1: off", between(-1, 100, float))
    xtc_probability: float = _knob(0.0, "--xtc-probability", "Sampling defaults", "how often the likeliest tokens are left out; 0: off", between(0, 1, float))
    xtc_threshold: float = _knob(0.1, "--xtc-threshold", "Sampling defaults", "tokens likelier than this may be left out, but the last of them", between(0, 1, float))
    dry_multiplier: float = _knob(0.0, "--dry-multiplier", "Sampling defaults", "penalty for going on with a repetition; 0: off", between(0, 100, float))
    dry_base: float = _knob(1.75, "--dry-base", "Sampling defaults", "that penalty grows by this with each token repeated", between(1, 100, float))
    dry_allowed_length: int = _knob(2, "--dry-allowed-length", "Sampling defaults", "tokens that may be repeated freely", count)
    dry_penalty_last_n: int = _knob(64, "--dry-penalty-last-n", "Sampling defaults", "tokens looked at for repetitions; 0: off, -1: the context", between(-1, 2**31 - 1))
    mirostat: int = _knob(0, "--mirostat", "Sampling defaults", "keep the surprise steady, version 1 or 2; 0: off", between(0, 2))
    mirostat_tau: float = _knob(5.0, "--mirostat-ent", "Sampling defaults", "the surprise that mirostat aims at", between(0, 100, float))
    mirostat_eta: float = _knob(0.1, "--mirostat-lr", "Sampling defaults", "how fast mirostat corrects itself", between(0, 1, float))
    adaptive_target: float = _knob(-1.0, "--adaptive-target", "Sampling defaults", "keep the probability of chosen tokens near this (sampler adaptive_p); -1: off", between(-1, 1, float))
    adaptive_decay: float = _knob(0.9, "--adaptive-decay", "Sampling defaults", "how slowly adaptive_p forgets", between(0, 0.99, float))
    ignore_eos: bool = _knob(False, "--ignore-eos", "Sampling defaults", "go on when the model ends its answer", flag)
    context_shift: bool = _knob(False, "--context-shift", "Sampling defaults", "forget the oldest tokens when the context is full, instead of ending", flag, env="LLAMA_ARG_CONTEXT_SHIFT", off="--no-context-shift")
    n_keep: int = _knob(0, "--keep", "Sampling defaults", "first tokens that a context shift keeps; -1: the prompt", between(-1, 2**31 - 1))
    repeat_last_n: int = _knob(64, "--repeat-last-n", "Sampling defaults", "tokens looked at for penalties; 0: off, -1: the context", between(-1, 2**31 - 1))
    repeat_penalty: float = _knob(1.0, "--repeat-penalty", "Sampling defaults", "penalty for repeated tokens; 1: off", between(1e-6, 100, float), env="LLAMA_ARG_REPEAT_PENALTY")
    presence_penalty: float = _knob(0.0, "--presence-penalty", "Sampling defaults", "penalty for tokens that occurred; 0: off", between(-100, 100, float), env="LLAMA_ARG_PRESENCE_PENALTY")
    frequency_penalty: float = _knob(0.0, "--frequency-penalty", "Sampling defaults", "penalty for each occurrence of a token; 0: off", between(-100, 100, float), env="LLAMA_ARG_FREQUENCY_PENALTY")
    seed: int = _knob(-1, "-s --seed", "Sampling defaults", "random seed; -1: a new one for each request", between(-1, 2**32 - 2))
    samplers: tuple[str, ...] | None = _knob(None, "--samplers", "Sampling defaults", "samplers in their order, separated by semicolons, or by their letters as --sampling-seq; default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", samplers, also={"--sampling-seq --sampler-seq": letters})
    logit_bias: tuple[tuple[int, float], ...] = _knob((), "-l --logit-bias", "Sampling defaults", "make a token likelier or less likely: TOKEN_ID+BIAS or TOKEN_ID-BIAS, as 15043-inf; may be repeated", logit_bias, many=True)
    stop: tuple[str, ...] = _knob((), "-r --reverse-prompt", "Sampling defaults", "text that ends an answer; may be repeated", text_once, many=True)
    dry_sequence_breakers: tuple[str, ...] | None = _knob(None, "--dry-sequence-breaker", "Sampling defaults", "text over which DRY sees no repetition, in place of line break, colon, quotation mark and asterisk; may be repeated; none: no such text", breaker, many=True)
    escape: bool = _knob(True, "-e --escape", "Sampling defaults", "read \\n, \\t, \\x41 and the like in --reverse-prompt and --dry-sequence-breaker", flag, off="--no-escape")
    grammar: str = _knob("", "--grammar", "Sampling defaults", "GBNF that every answer must match, where a request brings no constraint; or a file of it", also={"--grammar-file": file_text})
    json_schema: str = _knob("", "-j --json-schema", "Sampling defaults", "JSON Schema that every answer must match, where a request brings no constraint; or a file of it", json_schema, also={"-jf --json-schema-file": file_text})
    cache_prompt: bool = _knob(True, "--cache-prompt", "Sampling defaults", "take the part of a prompt that the cache holds from there", flag, off="--no-cache-prompt", env="LLAMA_ARG_CACHE_PROMPT")
    # fmt: on

    #: Names of the settings that were given, be it their default.
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to listen on."""
        return tuple(self.host.split(","))

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that may use the server; none: no key is needed."""
        return self.api_keys + self.api_key_file

    @property
    def slots(self) -> int:
        """Requests computed at the same time, the default filled in."""
        return self.n_slots or 4


def own_names(field: dataclasses.Field[Any]) -> dict[str, str]:
    """Corral's variables for a knob, and the flag that each stands for: ``CORRAL_GRAMMAR``,
    ``CORRAL_GRAMMAR_FILE``."""
    flags, also = field.metadata["flags"], field.metadata["also"]
    long = [next(f for f in flags if f.startswith("--"))]
    found: set[Any] = set()
    for name, meaning in also.items():
        if not isinstance(meaning, str) and meaning not in found and name.startswith("--"):
            found.add(meaning)
            long.append(name)
    return {"CORRAL_" + name[2:].replace("-", "_").upper(): name for name in long}


def env_names(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Environment names of a knob: ``CORRAL_CTX_SIZE``, ``LLAMA_ARG_CTX_SIZE``."""
    llama = field.metadata["env"]
    return (*own_names(field), llama) if llama else tuple(own_names(field))


def fields() -> list[dataclasses.Field[Any]]:
    """The fields of ``Settings`` that are knobs."""
    return [field for field in dataclasses.fields(Settings) if field.metadata]


def shown(field: dataclasses.Field[Any]) -> str:
    """A knob's default as a user would write it; empty where the help text says what it is."""
    if not field.default and "auto:" in field.metadata["help"]:
        return "auto"
    if field.default is None or field.default in ("", ()):
        return ""
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return str(field.default)


class Knob(NamedTuple):
    """One setting, as documentation shows it; ``flags`` are all of its spellings."""

    name: str
    flags: list[str]
    env: tuple[str, ...]
    default: str
    help: str
    group: str


def knobs() -> list[Knob]:
    """Every knob, in the order of ``--help``."""
    return [
        Knob(f.name, [*m["flags"], *m["also"]], env_names(f), shown(f), m["help"], m["group"])
        for f in fields()
        for m in (f.metadata,)
    ]
