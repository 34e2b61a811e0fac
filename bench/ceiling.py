"""The kernels' own speed: a bare llama_decode loop over the same batch, and what Corral's step
loop adds to it."""

import os
import socket
import subprocess
import time
from array import array

from bench.measure import embedded_model, median, table
from corral.backend.engine.core import Admitted, EngineCore
from corral.backend.engine.llama import Llama, Row, samplers
from corral.backend.engine.messages import Add, Sampling, frame
from corral.backend.engine.pace import PromptBudget, Threads

CONTEXT = 8192


def load(n_threads: int, n_slots: int = 16) -> Llama:
    """The embedded model with room for ``n_slots`` sequences."""
    return Llama(
        embedded_model(),
        n_ctx=CONTEXT,
        n_slots=n_slots,
        n_seq_max=n_slots + 2,
        n_batch=512,
        n_threads=n_threads,
    )


def bare_rate(model: Llama, prompts: list[list[int]], n_tokens: int) -> float:
    """Tokens per second of a loop that does nothing but llama_decode and argmax: every prompt in
    one call, then one row per sequence and step."""
    for seq_id in range(model.n_seq_max):
        model.cut(seq_id, 0)
    began = time.perf_counter()
    current = []
    for i, prompt in enumerate(prompts):
        index = model.decode([Row(i, 0, array("i", prompt), True)])[0]
        current.append(int(model.logits(index).argmax()))
    for step in range(n_tokens - 1):
        rows = [
            Row(i, len(prompts[i]) + step, array("i", [token]), True)
            for i, token in enumerate(current)
        ]
        current = [int(model.logits(i).argmax()) for i in model.decode(rows)]
    return len(prompts) * n_tokens / (time.perf_counter() - began)


class _Timed:
    """Adds up the time of a model's decode calls, and of llama.cpp's samplers, until ``stop``."""

    def __init__(self, model: Llama) -> None:
        self._model = model
        self._decode = model.decode
        self.decode_s = self.sampler_s = 0.0
        # In the model's own place: a stand-in would cost what each look at it costs.
        model.decode = self.decode  # type: ignore[method-assign]
        self.native = samplers._apply
        samplers._apply = self._apply

    def _apply(self, *args: object) -> None:
        began = time.perf_counter()
        self.native(*args)
        self.sampler_s += time.perf_counter() - began

    def decode(self, rows: list[Row]) -> list[int]:
        began = time.perf_counter()
        try:
            return self._decode(rows)
        finally:
            self.decode_s += time.perf_counter() - began

    def stop(self) -> None:
        """Leaves model and samplers as they were."""
        del self._model.decode
        samplers._apply = self.native


def overhead(
    model: Llama, n_sequences: int, sampling: Sampling, n_steps: int = 60
) -> tuple[float, float]:
    """What a step adds to its llama_decode, as a fraction (median): planning, sampling, text, and
    the frame sent to a reader; and how much of that llama.cpp's samplers are."""
    for seq_id in range(model.n_seq_max):
        model.cut(seq_id, 0)
    timed = _Timed(model)
    core = EngineCore(
        model,
        n_slots=n_sequences,
        max_queue=0,
        budget=PromptBudget(n_batch=512),
        threads=Threads(1, fixed=model._n_threads),
    )
    ours, theirs = socket.socketpair()
    # A reader of its own, as the server is: a thread here would fight for this interpreter.
    reader = subprocess.Popen(["cat"], stdin=theirs, stdout=subprocess.DEVNULL)
    theirs.close()
    for i in range(n_sequences):
        prompt = f"{i} is a number about which"
        add = Add(id=i, prompt=prompt, sampling=sampling, max_tokens=n_steps + 20)
        admitted = core.admit(add)
        assert isinstance(admitted, Admitted)
        core.add(admitted)
    while core.scheduler.n_generating < n_sequences:
        core.step()
    shares, native = [], []
    for _ in range(n_steps):
        timed.decode_s = timed.sampler_s = 0.0
        began = time.perf_counter()
        report = core.report(core.step())
        if report is not None:
            ours.sendall(frame(report))
        total = time.perf_counter() - began
        shares.append((total - timed.decode_s) / timed.decode_s)
        native.append(timed.sampler_s / timed.decode_s)
    ours.close()
    reader.wait()
    timed.stop()
    return median(shares), median(native)


def report(n_threads: int) -> None:
    """Prints the step loop's share at 1, 4 and 16 sequences."""
    model = load(n_threads)
    rows = []
    greedy = Sampling(temperature=0, ignore_eos=True, seed=1)
    default = Sampling(ignore_eos=True, seed=1)
    for n in (1, 4, 16):
        cheapest, _ = overhead(model, n, greedy)
        usual, native = overhead(model, n, default)
        limit = {1: "3%", 16: "5%"}.get(n, "")
        rows.append([n, f"{cheapest:.1%}", f"{usual:.1%}", f"{native:.1%}", limit])
    model.close()
    table(
        f"What a step adds to llama_decode ({n_threads} of {os.cpu_count()} threads, median)",
        ["sequences", "greedy", "default sampling", "of it llama.cpp's samplers", "at most"],
        rows,
    )
