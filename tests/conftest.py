import os
import select
from collections.abc import Callable

import pytest


@pytest.fixture
def until_gone() -> Callable[[int], None]:
    """Waits until a process has ended, whoever its parent is; fails after ten seconds."""

    def wait(pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            assert select.select([handle], [], [], 10)[0], f"process {pid} lives on"
        finally:
            os.close(handle)

    return wait
