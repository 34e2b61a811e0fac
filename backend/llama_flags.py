"""Flags of llama-server that are no settings here, and why. Those that are have their lines in
``settings``; a test holds that each flag is in one place only.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class LlamaFlag(NamedTuple):
    """A flag: its spellings, how many values follow it, its variable, and what to say about it."""

    flags: tuple[str, ...]
    n_values: int
    env: str
    why: str


# In a row: the flag's spellings, an N for each value that follows it, and its variable.
#: What they ask for is always so: taken, with a line at the start.
_ALWAYS: Final = {
    "the cache of sliding windows is always whole": ("--swa-full LLAMA_ARG_SWA_FULL",),
    "all slots always share one cache": ("-kvu --kv-unified LLAMA_ARG_KV_UNIFIED",),
    "what idle slots hold always stays cached": ("--cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS",),
    "timings are always measured": (
        "--perf LLAMA_ARG_PERF",
        "--no-perf LLAMA_ARG_NO_PERF",
    ),
    "the cache needs no defragmentation": ("-dt --defrag-thold N LLAMA_ARG_DEFRAG_THOLD",),
    "requests are always batched as they come": ("-cb --cont-batching LLAMA_ARG_CONT_BATCHING",),
    "no CORS headers are sent": ("--no-cors-credentials LLAMA_ARG_NO_CORS_CREDENTIALS",),
    "there is no such proxy": ("--no-ui-mcp-proxy --no-webui-mcp-proxy LLAMA_ARG_NO_UI_MCP_PROXY",),
    "there is no agent": ("-no-ag --no-agent LLAMA_ARG_NO_AGENT",),
    "connections need no threads": ("--threads-http N LLAMA_ARG_THREADS_HTTP",),
    "/metrics is always there": ("--metrics LLAMA_ARG_ENDPOINT_METRICS",),
    "/props is always there": ("--props LLAMA_ARG_ENDPOINT_PROPS",),
    "one model is served": ("--no-models-autoload LLAMA_ARG_NO_MODELS_AUTOLOAD",),
    "a request takes the longest prefix that any slot holds": ("-sps --slot-prompt-similarity N",),
    "messages are always plain text": ("--no-log-jsonl LLAMA_ARG_NO_LOG_JSONL",),
    "nothing is ever downloaded": ("--offline LLAMA_ARG_OFFLINE",),
    "there is no draft model": (
        "--no-spec-draft-backend-sampling LLAMA_ARG_NO_SPEC_DRAFT_BACKEND_SAMPLING",
    ),
}

#: What they ask for is not done: refused.
_REFUSED: Final = {
    "nothing is downloaded; fetch the file and name it with --model": (
        "-cl --cache-list",
        "-mu --model-url N LLAMA_ARG_MODEL_URL",
        "-dr --docker-repo N LLAMA_ARG_DOCKER_REPO",
        "-hf -hfr --hf-repo N LLAMA_ARG_HF_REPO",
        "-hff --hf-file N LLAMA_ARG_HF_FILE",
        "-hft --hf-token N HF_TOKEN",
    ),
    "there are no completions for shells": ("--completion-bash",),
    "the system places processes: use taskset": (
        "-C --cpu-mask N",
        "-Cr --cpu-range N",
        "--cpu-strict N",
        "-Cb --cpu-mask-batch N",
        "-Crb --cpu-range-batch N",
        "--cpu-strict-batch N",
    ),
    "use nice": (
        "--prio N",
        "--prio-batch N",
    ),
    "threads spin for a short while only": (
        "--poll N",
        "--poll-batch N",
    ),
    "speculative decoding is not built yet": (
        "-lcs --lookup-cache-static N",
        "-lcd --lookup-cache-dynamic N",
        "--spec-draft-hf -hfd -hfrd --hf-repo-draft N LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        "--spec-draft-threads -td --threads-draft N",
        "--spec-draft-threads-batch -tbd --threads-batch-draft N",
        "--spec-draft-cpu-mask -Cd --cpu-mask-draft N",
        "--spec-draft-cpu-range -Crd --cpu-range-draft N",
        "--spec-draft-cpu-strict --cpu-strict-draft N",
        "--spec-draft-prio --prio-draft N",
        "--spec-draft-poll --poll-draft N",
        "--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft N",
        "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft N",
        "--spec-draft-prio-batch --prio-batch-draft N",
        "--spec-draft-poll-batch --poll-batch-draft N",
        "--spec-draft-type-k -ctkd --cache-type-k-draft N LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
        "--spec-draft-type-v -ctvd --cache-type-v-draft N LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
        "--spec-draft-override-tensor -otd --override-tensor-draft N",
        "--spec-draft-cpu-moe -cmoed --cpu-moe-draft LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft N LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
        "--spec-draft-n-max N LLAMA_ARG_SPEC_DRAFT_N_MAX",
        "--spec-draft-n-min N LLAMA_ARG_SPEC_DRAFT_N_MIN",
        "--spec-synth-len N LLAMA_ARG_SPEC_SYNTH_LEN",
        "--spec-synth-rates N LLAMA_ARG_SPEC_SYNTH_RATES",
        "--spec-draft-p-split --draft-p-split N LLAMA_ARG_SPEC_DRAFT_P_SPLIT",
        "--spec-draft-p-min --draft-p-min N LLAMA_ARG_SPEC_DRAFT_P_MIN",
        "--spec-draft-backend-sampling LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
        "--spec-draft-device -devd --device-draft N",
        "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft N LLAMA_ARG_N_GPU_LAYERS_DRAFT",
        "--spec-draft-model -md --model-draft N LLAMA_ARG_SPEC_DRAFT_MODEL",
        "--spec-type N LLAMA_ARG_SPEC_TYPE",
        "--spec-ngram-mod-n-min N",
        "--spec-ngram-mod-n-max N",
        "--spec-ngram-mod-n-match N",
        "--spec-ngram-simple-size-n N",
        "--spec-ngram-simple-size-m N",
        "--spec-ngram-simple-min-hits N",
        "--spec-ngram-map-k-size-n N",
        "--spec-ngram-map-k-size-m N",
        "--spec-ngram-map-k-min-hits N",
        "--spec-ngram-map-k4v-size-n N",
        "--spec-ngram-map-k4v-size-m N",
        "--spec-ngram-map-k4v-min-hits N",
        "--draft --draft-n --draft-max N LLAMA_ARG_DRAFT_MAX",
        "--draft-min --draft-n-min N LLAMA_ARG_DRAFT_MIN",
        "--spec-ngram-size-n N",
        "--spec-ngram-size-m N",
        "--spec-ngram-min-hits N",
        "--spec-default",
    ),
    "slots have no share of the cache; one request may use all of it": (
        "--kv-unified-per-slot N LLAMA_ARG_KV_UNIFIED_PER_SLOT",
    ),
    "the cache needs no checkpoints to go back": (
        "-ctxcp --ctx-checkpoints --swa-checkpoints N LLAMA_ARG_CTX_CHECKPOINTS",
        "-cms --checkpoint-min-step N LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
    ),
    "all slots share one cache": ("-no-kvu --no-kv-unified LLAMA_ARG_NO_KV_UNIFIED",),
    "prefixes leave the cache when their room is needed; --cache-ram 0 keeps none beyond it": (
        "--no-cache-idle-slots LLAMA_ARG_NO_CACHE_IDLE_SLOTS",
    ),
    "a server gets its prompts from requests": (
        "-p --prompt N",
        "-f --file N",
        "-bf --binary-file N",
    ),
    "control tokens are not shown in answers; return_tokens gives their ids": ("-sp --special",),
    "prompts of /infill are always prefix, suffix, middle": ("--spm-infill",),
    "samplers always run on the CPU": ("-bs --backend-sampling LLAMA_ARG_BACKEND_SAMPLING",),
    "requests are always batched; --parallel 1 computes one at a time": (
        "-nocb --no-cont-batching LLAMA_ARG_NO_CONT_BATCHING",
    ),
    "nothing is downloaded; fetch the projector and name it with --mmproj": (
        "-mmu --mmproj-url N LLAMA_ARG_MMPROJ_URL",
    ),
    "the first GPU has the projector; --no-mmproj-offload leaves it to the CPU": (
        "-mmdev --mmproj-device N MTMD_BACKEND_DEVICE",
    ),
    "pictures are encoded one at a time, between steps": (
        "--mtmd-batch-max-tokens N LLAMA_ARG_MTMD_BATCH_MAX_TOKENS",
    ),
    "videos are not supported": (
        "--video-fps N LLAMA_ARG_VIDEO_FPS",
        "--video-timestamp-interval N LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL",
        "--video-ffmpeg-dir N LLAMA_ARG_VIDEO_FFMPEG_DIR",
    ),
    "computing on other machines is not supported": ("--rpc N LLAMA_ARG_RPC",),
    "weights are loaded at the start": ("-lzm --lazy-mode N LLAMA_ARG_LAZY_MODE",),
    "memory is not fitted: set --ctx-size": (
        "-fit --fit N LLAMA_ARG_FIT",
        "-fitt --fit-target N LLAMA_ARG_FIT_TARGET",
        "-fitc --fit-ctx N LLAMA_ARG_FIT_CTX",
    ),
    "control vectors are not supported": (
        "--control-vector N",
        "--control-vector-scaled N",
        "--control-vector-layer-range N N",
    ),
    "static files are Corral's own": ("--path N LLAMA_ARG_STATIC_PATH",),
    "no CORS headers are sent; a reverse proxy may add them": (
        "--cors-origins N LLAMA_ARG_CORS_ORIGINS",
        "--cors-methods N LLAMA_ARG_CORS_METHODS",
        "--cors-headers N LLAMA_ARG_CORS_HEADERS",
        "--cors-credentials LLAMA_ARG_CORS_CREDENTIALS",
    ),
    "the web UI has no such configuration": (
        "--ui-config --webui-config N LLAMA_ARG_UI_CONFIG",
        "--ui-config-file --webui-config-file N LLAMA_ARG_UI_CONFIG_FILE",
    ),
    "there are no tools on the server's side": (
        "--ui-mcp-proxy --webui-mcp-proxy LLAMA_ARG_UI_MCP_PROXY",
        "--tools N LLAMA_ARG_TOOLS",
        "--tools-runtime N LLAMA_ARG_TOOLS_RUNTIME",
        "--mcp-servers-config N LLAMA_ARG_MCP_SERVERS_CONFIG",
        "--mcp-servers-json N LLAMA_ARG_MCP_SERVERS_JSON",
        "-ag --agent LLAMA_ARG_AGENT",
    ),
    "only equal beginnings of prompts are reused, so that answers stay the same": (
        "--cache-reuse N LLAMA_ARG_CACHE_REUSE",
    ),
    "one model is served; start one server for each": (
        "--models-dir N LLAMA_ARG_MODELS_DIR",
        "--models-preset N LLAMA_ARG_MODELS_PRESET",
        "--models-max N LLAMA_ARG_MODELS_MAX",
        "--models-autoload LLAMA_ARG_MODELS_AUTOLOAD",
    ),
    "the model stays loaded": ("--sleep-idle-seconds N",),
    "messages are plain text": ("--log-jsonl LLAMA_ARG_LOG_JSONL",),
    "prompts are not kept in files; the web UI keeps conversations": ("--log-prompts-dir N",),
    "presets download models; name a file with --model": (
        "--embd-gemma-default",
        "--fim-qwen-1.5b-default",
        "--fim-qwen-3b-default",
        "--fim-qwen-7b-default",
        "--fim-qwen-7b-spec",
        "--fim-qwen-14b-spec",
        "--fim-qwen-30b-default",
        "--gpt-oss-20b-default",
        "--gpt-oss-120b-default",
        "--vision-gemma-4b-default",
        "--vision-gemma-12b-default",
    ),
}


def _read(table: Mapping[str, tuple[str, ...]]) -> tuple[LlamaFlag, ...]:
    found = []
    for why, rows in table.items():
        for row in rows:
            words = row.split()
            flags = tuple(word for word in words if word.startswith("-"))
            rest = [word for word in words if not word.startswith("-") and word != "N"]
            found.append(LlamaFlag(flags, words.count("N"), "".join(rest), why))
    return tuple(found)


#: Flags that are taken, since what they ask for is always so.
ALWAYS: Final = _read(_ALWAYS)
#: Flags that stop the start.
REFUSED: Final = _read(_REFUSED)
