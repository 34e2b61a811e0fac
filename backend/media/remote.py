"""Fetches media over HTTP without being led where the policy forbids.

Scheme, host and port are checked against the policy and the host's addresses against the networks
that nobody may name, at each redirect; the connection goes to an address that was checked, whatever
the name resolves to by then. httpcore follows, stores, decompresses and configures nothing itself.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, urljoin, urlsplit

import httpcore2 as httpcore

from corral.backend.errors import Refused
from corral.backend.media.hosts import PORTS, Address, literal, may_reach, plain_host
from corral.backend.media.policy import MediaPolicy

#: From a name and a port to its addresses, most wanted first. Raises OSError.
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[Address]]]

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
#: What URL parsers disagree about.
_NEVER_IN_A_URL: Final = re.compile(r"[\x00-\x20\x7f\\]")
_SAFE: Final = "/%:@!$&'()*+,;=~-._?"


async def system_resolve(host: str, port: int) -> list[Address]:
    """The addresses that this machine finds for a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(address[0]) for *_, address in found]


class Network(NamedTuple):
    """What reaches the world: names to addresses, connections, trust (None: as the system)."""

    resolve: Resolve = system_resolve
    backend: httpcore.AsyncNetworkBackend | None = None
    ssl_context: ssl.SSLContext | None = None


class Place(NamedTuple):
    """A URL taken apart, once. ``target`` is its path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class _NotFetched(Exception):
    """The message says why, and names no address that the caller did not."""


async def fetch(url: str, *, param: str, policy: MediaPolicy, network: Network) -> bytes:
    """What is at an ``http:`` or ``https:`` URL, of at most ``policy.max_bytes``.

    Raises Refused, naming ``param``, for what the policy forbids and for everything that the other
    side does wrong: it was the caller who chose it.
    """
    try:
        async with asyncio.timeout(policy.total_s):
            return await _follow(url, policy, network)
    except _NotFetched as error:
        raise Refused(str(error), param=param) from None
    except (TimeoutError, httpcore.TimeoutException):
        raise Refused(f"the URL was not fetched within {policy.total_s:g} s", param=param) from None
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
        message = "the URL cannot be fetched: no connection, or a broken answer"
        raise Refused(message, param=param) from None


async def _follow(url: str, policy: MediaPolicy, network: Network) -> bytes:
    for n_redirects in range(policy.max_redirects + 1):
        try:
            place = _parsed(url)
            addresses = await _addresses(place, policy, network)
        except _NotFetched as error:
            # Where an allowed host redirects to is not for the caller to know.
            raise _NotFetched(
                f"the URL redirects: {error}" if n_redirects else str(error)
            ) from None
        answer = await _get(place, addresses, policy, network)
        if isinstance(answer, bytes):
            return answer
        try:
            url = urljoin(url, answer)
        except ValueError:
            raise _NotFetched("the URL redirects to what is no URL") from None
    raise _NotFetched(f"the URL redirects more than {policy.max_redirects} times")


def _parsed(url: str) -> Place:
    if _NEVER_IN_A_URL.search(url):
        raise _NotFetched("a URL cannot contain spaces, control characters or backslashes")
    try:
        parts = urlsplit(url)
        host = plain_host(parts.hostname or "")
        port = parts.port
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        target = quote(target, safe=_SAFE)
    except ValueError:
        raise _NotFetched("the URL is not valid") from None
    if parts.scheme not in PORTS:
        raise _NotFetched("only http and https URLs are fetched")
    if "@" in parts.netloc:
        raise _NotFetched("a URL with a user name or password is not fetched")
    if port == 0:
        raise _NotFetched("the URL has no valid host and port")
    return Place(parts.scheme, host, port or PORTS[parts.scheme], target)


async def _addresses(place: Place, policy: MediaPolicy, network: Network) -> list[Address]:
    """The addresses to connect to, each of them allowed."""
    rules = [r for r in policy.allow if r.fits(place.scheme, place.host, place.port)]
    if not rules:
        raise _NotFetched("this server does not fetch from that host (--media-url-allow)")
    address = literal(place.host)
    if address is not None and any(rule.is_address for rule in rules):
        return [address]
    try:
        found = [address] if address else await network.resolve(place.host, place.port)
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise _NotFetched("the URL's host has no address")
    if not all(may_reach(one, inner=policy.private) for one in found):
        raise _NotFetched("the URL's host is not on the public internet")
    return found


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to given addresses, whoever is asked for; the name stays in TLS and ``Host``."""

    def __init__(self, addresses: list[Address], backend: httpcore.AsyncNetworkBackend) -> None:
        self._addresses = addresses
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to the first address that answers."""
        failed: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._backend.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


async def _get(
    place: Place, addresses: list[Address], policy: MediaPolicy, network: Network
) -> bytes | str:
    """The body at a place, or where it redirects to."""
    url = httpcore.URL(scheme=place.scheme, host=place.host, port=place.port, target=place.target)
    headers = [
        ("Host", place.authority),
        ("User-Agent", "corral"),
        ("Accept", "image/*, audio/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    timeouts = dict.fromkeys(("read", "write", "pool"), policy.total_s)
    timeouts["connect"] = policy.connect_s
    trust = network.ssl_context
    if trust is None and place.scheme == "https":
        # Reads the system's certificates: 30 ms in which streams would stand still.
        trust = await asyncio.to_thread(httpcore.default_ssl_context)
    async with (
        httpcore.AsyncConnectionPool(
            network_backend=_Pinned(addresses, network.backend or httpcore.AnyIOBackend()),
            ssl_context=trust,
            max_connections=1,
        ) as pool,
        pool.stream("GET", url, headers=headers, extensions={"timeout": timeouts}) as response,
    ):
        named = {name.lower(): value for name, value in response.headers}
        if response.status in _REDIRECTS and b"location" in named:
            return named[b"location"].decode("utf-8", "replace")
        if response.status != 200:
            raise _NotFetched(f"the URL answers with status {response.status}")
        if named.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _NotFetched("the URL's content is compressed, though it was asked for as it is")
        return await _body(response, named.get(b"content-length", b""), policy.max_bytes)


async def _body(response: httpcore.Response, declared: bytes, max_bytes: int) -> bytes:
    message = f"the URL holds more than {max_bytes} bytes"
    if declared.isdigit() and int(declared) > max_bytes:
        raise _NotFetched(message)
    body = bytearray()
    async with aclosing(response.aiter_stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > max_bytes:
                raise _NotFetched(message)
    return bytes(body)
