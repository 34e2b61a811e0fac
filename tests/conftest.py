import os
import select
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test writes to the data folder of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


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
