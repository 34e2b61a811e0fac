"""The rows of a batch as files to take away."""

import csv
import io
import json
import re
from collections.abc import AsyncIterator, Sequence

from corral.backend.store import BatchRow, Store
from corral.frontend.tools.batch_views import said

#: Rows read at a time.
_N_ROWS = 100
# What makes a cell a formula where tables are calculated with, and what no formula is.
_FORMULA = re.compile("[-=+@\\t\\r\\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*\s*")
_COLUMNS = ("id", "status", "prompt", "answer", "error", "n_prompt", "n_generated", "is_cut")


async def content(store: Store, batch_id: str, *, is_csv: bool) -> AsyncIterator[bytes]:
    """All rows, as JSONL or as a table."""
    yield _csv_line(_COLUMNS) if is_csv else b""
    at = 0
    while rows := await store.batches.rows(batch_id, at, _N_ROWS):
        at = rows[-1].position
        yield b"".join(_csv_line(_values(row)) if is_csv else _json_line(row) for row in rows)


def _values(row: BatchRow) -> Sequence[object]:
    messages = said(row.messages)
    prompt = messages[-1][1] if len(messages) == 1 else bytes(row.messages).decode()
    cut = "true" if row.is_cut else "false"
    return (
        *(row.name, row.status, prompt, row.answer, row.error),
        *(row.n_prompt, row.n_generated, cut),
    )


def _csv_line(values: Sequence[object]) -> bytes:
    text = io.StringIO(newline="")
    # RFC 4180: lines end in CRLF
    csv.writer(text).writerow(cell(v) if isinstance(v, str) else v for v in values)
    return text.getvalue().encode()


def cell(text: str) -> str:
    """A text that no spreadsheet runs: behind an apostrophe, which those do not show, where it
    would be a formula (OWASP, CSV injection). What the model wrote is not to be trusted there."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _json_line(row: BatchRow) -> bytes:
    fields = {
        "id": row.name,
        "status": row.status,
        "messages": json.loads(row.messages),
        "answer": row.answer,
        "reasoning": row.reasoning,
        "error": row.error,
        "is_cut": bool(row.is_cut),
        "n_prompt": row.n_prompt,
        "n_cached": row.n_cached,
        "n_generated": row.n_generated,
        "total_ms": round(row.total_ms, 1),
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
