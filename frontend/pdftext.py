"""The text of a PDF, in a process of its own: ``python pdftext.py < file.pdf > answer.json``.

A PDF may be made to take for ever or to fill the memory. Here both have limits, and whoever asked
ends this process when it does not end itself. Imports nothing of Corral, so that it starts at once.
"""

import io
import json
import logging
import sys
import time
from typing import Any

#: Pages that are read, characters that are kept, and when no further page is begun.
MAX_PAGES = 300
MAX_CHARS = 1_000_000
SOFT_S = 12.0
MAX_MEMORY = 1 << 30


def read(data: bytes) -> dict[str, Any]:
    """``text``, how many ``pages`` it is of ``n_pages``; or ``error``: encrypted, broken, empty."""
    from pypdf import PdfReader

    began_s = time.monotonic()
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            return {"error": "encrypted"}
        n_pages = len(reader.pages)
        texts: list[str] = []
        n_chars = 0
        for page in reader.pages[:MAX_PAGES]:
            texts.append(page.extract_text().strip())
            n_chars += len(texts[-1])
            if n_chars >= MAX_CHARS or time.monotonic() - began_s > SOFT_S:
                break
    except MemoryError:
        return {"error": "large"}
    except Exception:  # noqa: BLE001, a hostile file makes the reader raise anything
        return {"error": "broken"}
    text = "\n\n".join(filter(None, texts))[:MAX_CHARS]
    if not text.strip():
        return {"error": "empty"}
    return {"text": text, "pages": len(texts), "n_pages": n_pages}


def main() -> None:
    """Reads standard input, writes JSON to standard output."""
    logging.disable()
    sys.setrecursionlimit(2000)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    except (ImportError, ValueError, OSError):  # not on this system: the time limit is left
        pass
    answer = json.dumps(read(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(answer.encode())


if __name__ == "__main__":
    main()
