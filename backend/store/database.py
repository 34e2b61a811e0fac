"""The one file and the thread that owns a connection to it; the other rooms never see SQL."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from corral.backend.errors import Broken
from corral.backend.store.schema import migrate

P = ParamSpec("P")
T = TypeVar("T")

FILE_NAME = "corral.db"


class Database:
    """A connection to a data folder's file, used by one thread. Callers await their work.

    ``what`` names in messages what the file holds for its owner.
    """

    def __init__(self, folder: Path, *, what: str) -> None:
        self._folder = folder
        self._what = what
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._db: sqlite3.Connection | None = None

    async def open(self, prepare: Callable[[sqlite3.Connection], None]) -> None:
        """Opens or makes the file, brings it to the newest shape, and lets ``prepare`` at it.

        Raises Broken when the folder cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._db = await loop.run_in_executor(self._thread, _connect, self._folder, prepare)
        except (OSError, sqlite3.Error) as error:
            message = f"cannot keep {self._what} in {self._folder}: {error}"
            raise Broken(f"{message}; choose another folder with --data-dir") from error

    async def close(self) -> None:
        """Closes the file."""
        if self._db is not None:
            await self.run(sqlite3.Connection.close)
            self._db = None
        self._thread.shutdown()

    async def run(
        self,
        work: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The result of ``work`` with the connection. Raises Broken when the disk does not do its
        part."""
        assert self._db is not None, "the store is not open"
        db = self._db
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: work(db, *args, **kwargs))
        except (OSError, sqlite3.Error) as error:  # a full disk, a file taken away
            raise Broken(f"the {self._what} cannot be read or written: {error}") from error


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _connect(folder: Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    db = sqlite3.connect(folder / FILE_NAME, isolation_level=None, check_same_thread=True)
    try:
        db.row_factory = sqlite3.Row
        # What people say is private, also where the folder was there before.
        (folder / FILE_NAME).chmod(0o600)
        db.execute("PRAGMA busy_timeout = 5000")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        migrate(db)
        prepare(db)
    except BaseException:
        db.close()
        raise
    return db
