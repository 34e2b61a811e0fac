"""Every frame that crosses the seam between the server process and an engine process.

A frame is a 4-byte little-endian length and one msgpack value. The server sends ``Command``s, the
engine answers with ``Report``s. Requests are known by an integer the server chose; every ``Add`` is
answered by exactly one terminal output: ``Done`` or ``Failed``.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct, msgpack

from corral.backend.engine.options import LlamaOptions

FinishKind: TypeAlias = Literal["eos", "limit", "word", "cancelled"]
SlotState: TypeAlias = Literal["idle", "reading", "generating"]
Pooling: TypeAlias = Literal["none", "mean", "cls", "last", "rank"]
#: LoRA adapters in force together: ascending ids and their scales, none of them 0.
AdapterSet: TypeAlias = tuple[tuple[int, float], ...]


#: llama-server's default order. A sampler that is at its neutral value costs nothing.
SAMPLERS = (
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
)


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Effective sampling settings of one request; llama-server's names, meanings and defaults.

    ``seed`` None draws a random one, reported in ``Done``. ``temperature`` <= 0 is greedy.
    ``repeat_last_n`` and ``dry_penalty_last_n`` 0 switch theirs off, -1 look at the whole context.
    ``logit_bias`` maps a token id, or a text that is tokenised first, to an additive bias;
    ``-inf`` bans the token. ``samplers`` are names from ``SAMPLERS`` or ``adaptive_p``, applied in
    this order. ``mirostat`` 1 or 2, and ``adaptive_target`` >= 0, choose in place of the draw.
    ``n_probs`` asks for the likeliest tokens with every token chosen, by the model's own
    distribution, or by what the samplers left of it with ``post_sampling_probs``.
    """

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    samplers: tuple[str, ...] = SAMPLERS
    min_keep: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    n_probs: int = 0
    post_sampling_probs: bool = False


ConstraintKind: TypeAlias = Literal["json_schema", "gbnf", "lark", "regex", "calls"]


class Constraint(Struct, frozen=True):
    """What the whole answer must match: a JSON Schema as JSON text, or a grammar's source."""

    kind: ConstraintKind
    source: str


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether a constraint can be enforced: ``problem`` is empty when it can, ``path`` the place of
    one, such as ``grammar line 3``. ``compile_ms``: how long it took to find out."""

    problem: str = ""
    path: str = ""
    compile_ms: float = 0.0


class EngineConfig(Struct, frozen=True, kw_only=True):
    """What an engine process is started with. ``n_ctx`` 0: the model's own; ``n_threads`` 0: all
    cores, adapted; ``step_target_ms`` 0: automatic. ``plain_buffers`` loads the weights without
    llama.cpp's repacked layouts; ``flash_attn`` None: where it is faster.
    ``embeddings``: compute vectors too, with ``pooling`` (None: the model's own). ``n_ubatch``:
    most tokens of an input that is computed whole; 0: the model's longest.
    ``lora``: adapter files and scales. ``cache_ram_mib`` -1: without limit, 0: no prefixes in host
    memory. ``slot_save_path`` and ``cache_disk``: folders, empty: none. ``llama``: how llama.cpp
    loads the model. ``mmproj``: the file of a projector for pictures and sounds, empty: none;
    ``image_min_tokens`` and ``image_max_tokens`` -1: as it says, for those that take pictures of
    any size; ``media_cache_mib``: host memory for what pictures and sounds became."""

    model: str
    n_ctx: int = 0
    n_slots: int = 4
    max_queue: int = 64
    n_batch: int = 512
    n_threads: int = 0
    step_target_ms: int = 0
    check_tensors: bool = False
    plain_buffers: bool = False
    flash_attn: bool | None = None
    embeddings: bool = False
    pooling: Pooling | None = None
    n_ubatch: int = 0
    lora: tuple[tuple[str, float], ...] = ()
    lora_init_without_apply: bool = False
    slot_save_path: str = ""
    cache_ram_mib: int = 0
    cache_disk: str = ""
    cache_disk_mib: int = 4096
    llama: LlamaOptions = LlamaOptions()
    mmproj: str = ""
    mmproj_offload: bool = True
    image_min_tokens: int = -1
    image_max_tokens: int = -1
    media_cache_mib: int = 256
    fake: bool = False


# --- server -> engine -------------------------------------------------------------------------


class Media(Struct, frozen=True, kw_only=True):
    """A picture or a sound, verified and decoded. ``data`` of a picture: ``width * height`` pixels
    of 3 bytes RGB, row by row from the top; of a sound: little-endian float32 samples of one
    channel at ``ModelInfo.audio_rate``. ``key``: the SHA-256 of what it was decoded from, in hex.
    """

    kind: Literal["image", "audio"]
    key: str
    data: bytes
    width: int = 0
    height: int = 0


class Written(Struct, frozen=True):
    """A rendered prompt. ``foreign`` are the ranges ``[start, end)`` of its characters, ascending
    and apart, that came from the client and not from the template: no token of special meaning is
    found in them, nor across their ends. ``places``: how many characters stand before each of its
    pictures and sounds (``Add.media``), ascending."""

    text: str
    foreign: tuple[tuple[int, int], ...] = ()
    places: tuple[int, ...] = ()


#: A prompt: text, token ids and texts mixed, or what a template wrote.
Prompt: TypeAlias = str | list[int | str] | Written


class Thinking(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How reasoning is written, and how much of it there may be.

    It is what stands between ``start`` and ``end``; with ``is_open`` it begins with the answer.
    After ``budget`` tokens of it (-1: no limit), or when asked to (``Call`` ``end_thinking``), the
    engine writes ``message`` and ``end`` in the model's place. Behind the end, whoever wrote it, it
    writes ``then``, which a constraint knows nothing of.
    """

    start: str
    end: str
    then: str = ""
    is_open: bool = False
    budget: int = -1
    message: str = ""


class Add(Struct, tag="add", frozen=True, kw_only=True, omit_defaults=True):
    """Generate from a prompt.

    ``prompt`` is text, or a list mixing token ids and texts. Text is tokenised with special tokens,
    but for what of a ``Written`` is foreign; a BOS is put in front when the model wants one and the
    tokens do not already begin with it.
    ``max_tokens`` -1 runs to the end of the context, 0 evaluates the prompt only.

    ``context_shift``: when the context is full, ``n_discard`` tokens (0: half) behind the first
    ``n_keep`` (-1: the prompt) are forgotten and the answer goes on. ``n_indent`` > 0 ends it at a
    line indented less; ``t_max_predict_ms`` > 0 at the first new line after that long.
    ``id_slot`` >= 0 waits for that slot. ``lora`` are adapters and their scales for this request,
    None those in force. ``prompt_probs`` reports the prompt's own tokens with their probabilities
    (``PromptProbs``), which computes all of it. ``joins`` marks one more answer of a request that
    has its place already: a full queue does not refuse it. ``marks`` are tags to be told of
    when they are generated as one token (see ``Delta``). ``media``: one for each of the prompt's
    ``places``; each takes as many tokens of the prompt as the projector makes of it.
    """

    id: int
    prompt: Prompt
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    max_tokens: int = -1
    cache_prompt: bool = True
    constraint: Constraint | None = None
    context_shift: bool = False
    n_keep: int = 0
    n_discard: int = 0
    n_indent: int = 0
    t_max_predict_ms: int = -1
    id_slot: int = -1
    lora: tuple[tuple[int, float], ...] | None = None
    prompt_probs: bool = False
    joins: bool = False
    marks: tuple[str, ...] = ()
    thinking: Thinking | None = None
    media: tuple[Media, ...] = ()


class Embed(Struct, tag="embed", frozen=True, kw_only=True, omit_defaults=True):
    """Compute a vector of each input, or with ``query`` a score of each for that query.

    ``inputs`` are prompts as in ``Add``, with the special tokens the model wants around them. Every
    input is answered by one ``Embedded``, in any order, and all together by ``Done``. An input that
    cannot be computed refuses all of them: ``Failed.param`` is then ``inputs[i]`` and the message
    goes on from its name. ``truncate`` cuts what is too long instead, of a pair the document.
    """

    id: int
    inputs: list[str | list[int | str]]
    query: str | None = None
    truncate: bool = False


class Abort(Struct, tag="abort", frozen=True):
    """Stop a request; takes effect before the next step. Unknown ids are ignored."""

    id: int


class Call(Struct, tag="call", frozen=True):
    """A question that needs no step: ``tokenize``, ``tokenize_prompt``, ``pieces``,
    ``format_chat``, ``check_constraint``, those of ``memory.Memory.METHODS``, ``end_thinking`` of a
    running request, or ``control`` for the fake."""

    id: int
    method: str
    args: dict[str, Any]


Command: TypeAlias = Add | Embed | Abort | Call

# --- engine -> server -------------------------------------------------------------------------


class LoraInfo(Struct, frozen=True, kw_only=True):
    """A LoRA adapter as it was loaded; ``scale`` from the command line. With
    ``invocation_tokens`` it is meant to act only from there on."""

    id: int
    path: str
    scale: float
    task_name: str = ""
    prompt_prefix: str = ""
    invocation_tokens: list[int] = []


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is known of a loaded model. Sizes in tokens unless the name says bytes. ``fim_*`` are
    the tokens around the parts of a text to fill in, -1 where the model has none.

    ``generates``: it continues text. ``pooling``: it computes vectors of ``n_embd_out`` numbers
    from inputs of at most ``n_input`` tokens; None: it does not. ``ranks``: it scores documents.
    ``chat_template_tool_use``: the one for conversations with tools, where there are two.
    ``special_tokens``: the texts of all control and user-defined tokens. ``vision``, ``audio``: it
    takes pictures, sounds (at ``audio_rate`` samples a second)."""

    path: str
    architecture: str
    description: str
    ftype: str
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_params: int
    size_bytes: int
    vocab_type: int
    n_slots: int
    add_bos: bool
    bos_token: str
    eos_token: str
    chat_template: str | None
    chat_template_tool_use: str | None = None
    sampling: dict[str, float] = {}
    lora: list[LoraInfo] = []
    fim_pre: int = -1
    fim_suf: int = -1
    fim_mid: int = -1
    fim_rep: int = -1
    fim_sep: int = -1
    generates: bool = True
    pooling: Pooling | None = None
    ranks: bool = False
    n_embd_out: int = 0
    n_input: int = 0
    special_tokens: list[str] = []
    vision: bool = False
    audio: bool = False
    audio_rate: int = 0


class Loading(Struct, tag="loading", frozen=True):
    """Model load progress, 0 to 1."""

    progress: float


class Ready(Struct, tag="ready", frozen=True):
    """The model is loaded; requests are served from here on."""

    info: ModelInfo


class LoadFailed(Struct, tag="load_failed", frozen=True):
    """The model cannot be loaded; the engine process ends after this."""

    message: str


class Reply(Struct, tag="reply", frozen=True):
    """The answer to a ``Call``: ``value``, or ``error`` when it was refused, with its kind (see
    ``errors.KINDS``) and the field at fault."""

    id: int
    value: Any = None
    error: str | None = None
    param: str = "tokens"
    code: str = "invalid"


class Accepted(Struct, tag="accepted", array_like=True, frozen=True, gc=False):
    """The prompt was tokenised, fits, and has a place in the queue."""

    id: int
    n_prompt: int


class Started(Struct, tag="started", array_like=True, frozen=True, gc=False):
    """The request left the queue and holds a slot; ``n_cached`` prompt tokens are known already."""

    id: int
    slot: int
    n_cached: int


class Progress(Struct, tag="progress", array_like=True, frozen=True, gc=False):
    """Prompt tokens done: ``processed`` of ``total``, with the ``cached``, after ``time_ms``."""

    id: int
    total: int
    cached: int
    processed: int
    time_ms: float


class TokenProbs(Struct, array_like=True, frozen=True, gc=False):
    """A token, the bytes it stands for, its log probability (-inf: none), and the likeliest tokens
    in its place, likeliest first, each likewise. With ``post_sampling_probs`` the numbers are
    probabilities. ``logprob`` is None for the first token of a prompt."""

    token: int
    piece: bytes
    logprob: float | None
    top: list[tuple[int, bytes, float]]


class PromptProbs(Struct, tag="prompt_probs", array_like=True, frozen=True, gc=False):
    """The next prompt tokens with their probabilities; see ``Add.prompt_probs``."""

    id: int
    probs: list[TokenProbs]


class Delta(Struct, tag="delta", array_like=True, frozen=True, gc=False):
    """Generated text that can no longer become part of a stop string, and its tokens; ``probs`` one
    for each of them, when they were asked for. ``marks``: tags of ``Add.marks`` among the tokens,
    which are not in the text, each with the number of characters before it."""

    id: int
    text: str
    tokens: list[int]
    probs: list[TokenProbs] = []
    marks: list[tuple[int, str]] = []


class Stats(Struct, array_like=True, frozen=True, gc=False):
    """Counts and times of a finished request. ``n_prompt`` includes the ``n_cached`` tokens that
    were not computed; ``queue_ms`` is the wait before a slot was free; ``n_discarded`` tokens were
    forgotten by context shifts."""

    n_prompt: int
    n_cached: int
    n_generated: int
    queue_ms: float
    prompt_ms: float
    predicted_ms: float
    seed: int
    slot: int
    truncated: bool
    n_discarded: int = 0


class Embedded(Struct, tag="embedded", array_like=True, frozen=True, gc=False):
    """What came of input number ``index``, of ``n_tokens`` tokens: ``data`` are little-endian
    float32 numbers as the model gives them, ``ModelInfo.n_embd_out`` for one vector; without
    pooling a vector for each token."""

    id: int
    index: int
    n_tokens: int
    data: bytes


class Done(Struct, tag="done", array_like=True, frozen=True, gc=False):
    """The request ended as it should. ``truncated``: the context ended before the answer did."""

    id: int
    finish: FinishKind
    stopping_word: str
    stats: Stats


class Failed(Struct, tag="failed", array_like=True, frozen=True, gc=False):
    """The request ended in an error of kind ``code`` (see ``errors.KINDS``); ``param`` names the
    field at fault."""

    id: int
    code: str
    message: str
    extra: dict[str, int] = {}
    param: str = ""


Output: TypeAlias = Accepted | Started | Progress | PromptProbs | Delta | Embedded | Done | Failed


class SlotRow(Struct, array_like=True, frozen=True, gc=False):
    """One slot, as it stands after a step. ``task`` is the request id, -1 when idle;
    ``n_processed`` counts prompt tokens done including ``n_cached``."""

    id: int
    state: SlotState
    task: int = -1
    n_prompt: int = 0
    n_cached: int = 0
    n_processed: int = 0
    n_generated: int = 0
    max_tokens: int = -1
    tokens_per_second: float = 0.0


class Counters(Struct, array_like=True, frozen=True, gc=False):
    """Totals since the engine started; they only grow."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    decode_calls: int = 0
    busy_slots: int = 0
    preemptions: int = 0
    steps: int = 0
    states_saved: int = 0
    states_restored: int = 0
    tokens_restored: int = 0
    disk_reads: int = 0


class Snapshot(Struct, array_like=True, frozen=True, gc=False):
    """The engine's public state after a step. ``waiting`` are request ids in queue order."""

    slots: list[SlotRow]
    waiting: list[int]
    cells_total: int
    cells_used: int
    cells_cached: int
    n_threads: int
    counters: Counters
    ram_bytes: int = 0
    ram_prefixes: int = 0
    disk_bytes: int = 0


class Step(Struct, tag="step", frozen=True, gc=False):
    """What one step brought, all requests together."""

    outputs: list[Output]
    snapshot: Snapshot | None = None


Report: TypeAlias = Loading | Ready | LoadFailed | Reply | Step

_encoder = msgpack.Encoder()
decode_command = msgpack.Decoder(Command).decode
decode_report = msgpack.Decoder(Report).decode


def frame(message: Command | Report) -> bytes:
    """The bytes of one message: length, then body."""
    buffer = bytearray(4)
    _encoder.encode_into(message, buffer, 4)
    buffer[:4] = (len(buffer) - 4).to_bytes(4, "little")
    return bytes(buffer)


class FrameReader:
    """Cuts a byte stream into message bodies; feed it any split of the stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that ``data`` completes, in order."""
        self._buffer += data
        bodies, start = [], 0
        while len(self._buffer) - start >= 4:
            end = start + 4 + int.from_bytes(self._buffer[start : start + 4], "little")
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + 4 : end]))
            start = end
        if start:
            del self._buffer[:start]
        return bodies
