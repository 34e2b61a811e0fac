"""``python -m bench``: measures Corral against its ceiling and a peer, as ratios in one run."""

import argparse
import os

from bench import arrays, ceiling, chat, clients, gaps, neighbour, prefix, structured

PARTS = (
    "overhead",
    "clients",
    "gaps",
    "neighbour",
    "structured",
    "array",
    "common-prefix",
    "chat",
)


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
    threads = os.cpu_count() or 1 if arguments.threads == "auto" else int(arguments.threads)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if "overhead" in parts:
        ceiling.report(threads)
    if "clients" in parts:
        clients.report(threads, arguments.threads, arguments.rounds)
    if "gaps" in parts:
        gaps.report(arguments.threads, arguments.rounds)
    if "neighbour" in parts:
        neighbour.report()
    if "structured" in parts:
        structured.report(arguments.threads, arguments.rounds)
    if "array" in parts:
        arrays.report(arguments.threads, arguments.rounds)
    if "common-prefix" in parts:
        prefix.report(arguments.threads, arguments.rounds)
    if "chat" in parts:
        chat.report(arguments.rounds)


if __name__ == "__main__":
    main()
