"""``python -m bench``: measures Corral against its ceiling and a peer, as ratios in one run."""

import argparse
import os
from collections.abc import Callable
from typing import Any

from bench import (
    arrays,
    ceiling,
    chat,
    clients,
    gaps,
    markdown_cost,
    neighbour,
    prefix,
    structured,
    vision,
)


def _threads(arguments: Any) -> int:
    """A number, for what cannot adapt."""
    return os.cpu_count() or 1 if arguments.threads == "auto" else int(arguments.threads)


PARTS: dict[str, Callable[[Any], None]] = {
    "overhead": lambda a: ceiling.report(_threads(a)),
    "clients": lambda a: clients.report(_threads(a), a.threads, a.rounds),
    "gaps": lambda a: gaps.report(a.threads, a.rounds),
    "neighbour": lambda a: neighbour.report(),
    "structured": lambda a: structured.report(a.threads, a.rounds),
    "array": lambda a: arrays.report(a.threads, a.rounds),
    "common-prefix": lambda a: prefix.report(a.threads, a.rounds),
    "chat": lambda a: chat.report(a.rounds),
    "markdown": lambda a: markdown_cost.report(a.rounds),
    "vision": lambda a: vision.report(_threads(a), a.rounds),
}


def main() -> None:
    """Runs the parts named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--threads", default="auto", help="of every contestant; auto: ours adapt")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, run in PARTS.items():
        if name in parts:
            run(arguments)


if __name__ == "__main__":
    main()
