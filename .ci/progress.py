"""Runs a long command and shows that it is alive: ``progress.py LOG TITLE COMMAND...``.

The command's whole output goes to LOG. Shown are the packages in hand, how far a compile is and the
time gone, on one changing line in a terminal and as a line now and then elsewhere. When the command
fails, the end of its output follows, and the exit status is the command's.
"""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

QUIET_S = 15.0  # a line at least this often where lines cannot be rewritten
TAIL = 40

# ninja counts steps, make counts per cent; both stand in brackets at the start of a line.
STEP = re.compile(r"\s*\[\s*(\d+)(?:/(\d+)|%)\]")
PACKAGE = re.compile(
    r"\s*((Collecting|Downloading|Building wheel for) [\w.-]+|Installing (collected|build) \w+)"
)


class Meter:
    """What the command was last seen doing; written by the reader, shown by the main thread."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.doing = ""
        self.began = self.last = time.monotonic()
        self.is_terminal = sys.stdout.isatty()

    def see(self, line: str) -> None:
        """Takes in one line of the command's output."""
        if step := STEP.match(line):
            done, total = int(step[1]), int(step[2] or 100)
            self.doing = f"compiling, {100 * done // max(total, 1)} %"
        elif package := PACKAGE.match(line):
            self.doing = package[1]

    def show(self, *, last: str = "") -> None:
        """Prints the state if it is time to; ``last`` ends the display."""
        now = time.monotonic()
        if not (last or self.is_terminal or now - self.last >= QUIET_S):
            return
        self.last = now
        minutes, seconds = divmod(int(now - self.began), 60)
        text = f"{self.title} [{minutes}:{seconds:02}] {last or self.doing}"
        if self.is_terminal:
            print(f"\r\033[K{text[:100]}", end="\n" if last else "", flush=True)
        else:
            print(text, flush=True)


def read(process: subprocess.Popen[str], meter: Meter, log: Path) -> None:
    """Copies the command's output to the log and tells the meter."""
    assert process.stdout is not None
    with log.open("a", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            file.flush()
            meter.see(line)


def main(log: Path, title: str, command: list[str]) -> int:
    """Runs ``command``; returns its exit status."""
    meter = Meter(title)
    log.write_text(f"$ {' '.join(command)}\n", encoding="utf-8")
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    reader = threading.Thread(target=read, args=(process, meter, log))
    reader.start()
    try:
        while reader.is_alive():
            meter.show()
            reader.join(timeout=1.0)
        status = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        status = process.wait() or 130
    meter.show(last="failed" if status else "done")
    if status:
        lines = log.read_text(encoding="utf-8").splitlines()
        print(
            *lines[-TAIL:], f"\n{title} failed. The whole output: {log}", sep="\n", file=sys.stderr
        )
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
