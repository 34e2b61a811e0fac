"""Where the server listens: addresses to sockets, and what people write for them."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

BACKLOG = 2048


class CannotListen(Exception):
    """An address cannot be had; the message says which and why."""


@contextlib.contextmanager
def listening(
    hosts: Sequence[str], port: int, *, reuse_port: bool = False
) -> Iterator[list[socket.socket]]:
    """Sockets that listen: a host that ends in ``.sock`` is the path of a UNIX socket, which goes
    when the context ends. ``port`` 0 takes any free one, the same for all hosts. Raises
    ``CannotListen``."""
    with contextlib.ExitStack() as stack:
        found: list[socket.socket] = []
        for host in hosts:
            try:
                if is_path(host):
                    found.append(stack.enter_context(_at_path(Path(host))))
                    continue
                for made in _at_address(host, port, reuse_port=reuse_port):
                    found.append(stack.enter_context(made))
                    port = made.getsockname()[1]
            except OSError as error:
                where = host if is_path(host) else f"{host}:{port}"
                reason = (error.strerror or str(error)).lower()
                raise CannotListen(f"cannot listen at {where}: {reason}") from None
        yield found


def is_path(host: str) -> bool:
    """Whether a host is the path of a UNIX socket, by llama-server's rule."""
    return host.endswith(".sock")


def url(listener: socket.socket, *, tls: bool, prefix: str = "") -> str:
    """How people reach it."""
    address = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{address}{prefix and ':' + prefix}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http{'s' * tls}://{host}:{address[1]}{prefix}"


def _at_address(host: str, port: int, *, reuse_port: bool) -> Iterator[socket.socket]:
    """A socket for each address of a name."""
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    for info in dict.fromkeys(socket.getaddrinfo(host or None, port, type=kind, flags=flags)):
        family, _, _, _, address = info
        # The protocol is named because asyncio switches Nagle's delay off only where it is.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        with _closed_on_error(made):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((address[0], port, *address[2:]))
            made.listen(BACKLOG)
        port = made.getsockname()[1]
        yield made


@contextlib.contextmanager
def _at_path(path: Path) -> Iterator[socket.socket]:
    """A socket at a path; the process's umask says who may connect. One that nobody listens to any
    more is replaced."""
    _remove_dead(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _closed_on_error(made):
        made.bind(os.fspath(path))
        made.listen(BACKLOG)
    own = path.stat().st_ino
    try:
        with made:
            yield made
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == own:
                path.unlink()


def _remove_dead(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return  # binding says that something is there
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()


@contextlib.contextmanager
def _closed_on_error(made: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        made.close()
        raise
