"""``python -m bench``: measures Corral against its ceiling and a peer, as ratios in one run."""

import argparse
import os

from bench import ceiling, clients, gaps, neighbour


def main() -> None:
    """Runs the parts named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help="overhead, clients, gaps, neighbour; default: all")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    parts = arguments.parts or ["overhead", "clients", "gaps", "neighbour"]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if "overhead" in parts:
        ceiling.report(arguments.threads)
    if "clients" in parts:
        clients.report(arguments.threads, arguments.rounds)
    if "gaps" in parts:
        gaps.report(arguments.threads, arguments.rounds)
    if "neighbour" in parts:
        neighbour.report()


if __name__ == "__main__":
    main()
