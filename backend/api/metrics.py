"""``/metrics``: the engine's snapshot under llama-server's names, and what the API itself sees."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corral.backend.chat.types import Text
from corral.backend.choices import Indexed
from corral.backend.engine.messages import Counters, Snapshot

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_NEXT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

#: A counter of the snapshot: metric, help, member of ``Counters``.
_COUNTERS = (
    ("llamacpp:prompt_tokens", "Prompt tokens computed", "prompt_tokens"),
    ("llamacpp:prompt_tokens_cached", "Prompt tokens found in the cache", "prompt_tokens_cached"),
    ("llamacpp:prompt_seconds", "Time spent on prompts", "prompt_seconds"),
    ("llamacpp:tokens_predicted", "Tokens generated", "predicted_tokens"),
    ("llamacpp:tokens_predicted_seconds", "Time spent generating", "predicted_seconds"),
    ("llamacpp:n_decode", "Calls of llama_decode", "decode_calls"),
    ("corral_preemptions", "Requests set back because the cache was full", "preemptions"),
    ("corral_steps", "Steps of the engine", "steps"),
    ("corral_states_saved", "Prefixes copied to host memory", "states_saved"),
    ("corral_states_restored", "Prefixes brought back from host memory", "states_restored"),
    ("corral_tokens_restored", "Tokens brought back from host memory", "tokens_restored"),
    ("corral_disk_reads", "Prefixes read from the disk cache", "disk_reads"),
)


class _Engine(Collector):
    """Reads the snapshot when scraped; never waits for the engine."""

    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        counters = Counters() if snapshot is None else snapshot.counters
        for name, text, member in _COUNTERS:
            yield CounterMetricFamily(name, text, value=getattr(counters, member))
        for name, text, value in _gauges(snapshot, counters):
            yield GaugeMetricFamily(name, text, value=value)


def _gauges(snapshot: Snapshot | None, c: Counters) -> Iterator[tuple[str, str, float]]:
    s = snapshot
    busy = 0 if s is None else sum(slot.state != "idle" for slot in s.slots)
    total, used, cached = (0, 0, 0) if s is None else (s.cells_total, s.cells_used, s.cells_cached)
    # Averages since the start: a scrape changes nothing for the next one.
    yield (
        "llamacpp:prompt_tokens_seconds",
        "Prompt tokens a second, on average",
        _per(c.prompt_tokens, c.prompt_seconds),
    )
    yield (
        "llamacpp:predicted_tokens_seconds",
        "Generated tokens a second of one request, on average",
        _per(c.predicted_tokens, c.predicted_seconds),
    )
    yield "llamacpp:requests_processing", "Requests that hold a slot", busy
    yield "llamacpp:requests_deferred", "Requests in the queue", 0 if s is None else len(s.waiting)
    yield (
        "llamacpp:n_busy_slots_per_decode",
        "Slots in a decode call, on average",
        _per(c.busy_slots, c.decode_calls),
    )
    yield "llamacpp:kv_cache_usage_ratio", "Part of the KV cache in use", _per(used, total)
    yield "llamacpp:kv_cache_tokens", "Tokens in the KV cache", used
    yield "corral_kv_cached_tokens", "Tokens kept in the KV cache for later requests", cached
    ram, prefixes, disk = (0, 0, 0) if s is None else (s.ram_bytes, s.ram_prefixes, s.disk_bytes)
    yield "corral_ram_cache_bytes", "Size of the prefixes in host memory", ram
    yield "corral_ram_cache_prefixes", "Prefixes in host memory", prefixes
    yield "corral_disk_cache_bytes", "Size of the prefixes on disk", disk
    yield "corral_threads", "Compute threads", 0 if s is None else s.n_threads


def _per(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0


class Meters:
    """One application's metrics, in a registry of its own. Owned by the event loop."""

    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Engine(snapshot))
        self._first = Histogram(
            "corral_time_to_first_token_seconds",
            "From a request's arrival to its first text",
            registry=self._registry,
            buckets=_FIRST_S,
        )
        self._next = Histogram(
            "corral_inter_token_seconds",
            "Between two pieces of text of one answer",
            registry=self._registry,
            buckets=_NEXT_S,
        )
        self._requests = Counter(
            "corral_requests",
            "Replies begun, by route and status",
            ("route", "status"),
            registry=self._registry,
        )

    def count(self, route: str, status: int) -> None:
        """A reply has begun."""
        self._requests.labels(route, str(status)).inc()

    async def watch(self, events: AsyncIterable[Indexed], began_s: float) -> AsyncIterator[Indexed]:
        """The same events, timed. ``began_s``: when the request arrived, by ``perf_counter``."""
        last_s: dict[int, float] = {}  # by answer
        async for index, event in events:
            if isinstance(event, Text):
                now = time.perf_counter()
                if index in last_s:
                    self._next.observe(now - last_s[index])
                elif not last_s:
                    self._first.observe(now - began_s)
                last_s[index] = now
            yield index, event

    def text(self) -> bytes:
        """Everything in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)
