"""Where media may be fetched from: patterns of hosts, and networks no name may lead to. Pure."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from msgspec import Struct

Address: TypeAlias = IPv4Address | IPv6Address

#: The standard port of each scheme.
PORTS: Final = {"http": 80, "https": 443}

#: Networks behind the server's own doors; reached only if the operator says so.
_INNER: Final = tuple(
    ip_network(text)
    for text in (
        *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
        *("::1/128", "fc00::/7"),
    )
)
#: Of 2000::/3, where IPv6's public addresses are: Teredo and others of 2001::/23, examples, 6to4.
_NOT_PUBLIC_6: Final = tuple(
    ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
_PUBLIC_6: Final = ip_network("2000::/3")
#: IPv4 in IPv6, as networks without IPv4 of their own reach it (NAT64).
_NAT64: Final = ip_network("64:ff9b::/96")
#: IPv4 that is nobody's host: this network, link-local (where clouds keep credentials), protocols,
#: examples, the 6to4 relay, benchmarks, multicast and all above; and Azure's own, public in looks.
_NOT_PUBLIC_4: Final = tuple(
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        "168.63.129.16/32",
    )
)

_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_-]+)*")
_PATTERN: Final = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\*|\[[0-9a-f:.]+\]|[^:/\[\]@?#\\]+)(?::(?P<port>\*|\d+))?"
)


class Allowed(Struct, frozen=True, kw_only=True):
    """One entry of ``--media-url-allow``. ``scheme`` None: http and https. ``host``: a name, an
    address, ``*.name`` for every name below it but not itself, or ``*``. ``port`` None: the
    scheme's own; 0: any."""

    scheme: str | None
    host: str
    port: int | None

    @property
    def is_address(self) -> bool:
        """Whether it names an address: then the address may be an inner one."""
        return literal(self.host) is not None

    def fits(self, scheme: str, host: str, port: int) -> bool:
        """Whether a place is allowed by this entry. ``host`` as ``plain_host`` writes it."""
        if self.scheme not in (None, scheme):
            return False
        if self.port != 0 and port != (self.port or PORTS[scheme]):
            return False
        if self.host.startswith("*"):
            return host.endswith(self.host[1:])
        return host == self.host


def parse_allowed(text: str) -> Allowed:
    """An entry, ``[http://|https://]host[:port]``; see Allowed. Raises ValueError with a reason."""
    match = _PATTERN.fullmatch(text.strip().lower())
    if match is None:
        message = f"{text!r} is not of the form [http://|https://]host[:port]"
        raise ValueError(message)
    host, port = match["host"], match["port"]
    is_below = host.startswith("*.")
    if host != "*":
        host = ("*." if is_below else "") + plain_host(host[2:] if is_below else host)
    if is_below and literal(host[2:]) is not None:
        raise ValueError(f"{text!r}: there are no names below an address")
    n_port = None if port is None else 0 if port == "*" else int(port)
    if n_port is not None and (n_port > 65535 or port == "0"):
        raise ValueError(f"{text!r}: no port has the number {port}")
    return Allowed(scheme=match["scheme"], host=host, port=n_port)


def plain_host(host: str) -> str:
    """A host of a URL or pattern in its one form: lower case, ASCII, no brackets, no last dot;
    addresses in their shortest form. Raises ValueError for what is no host."""
    host = host.removeprefix("[").removesuffix("]").lower()
    if "%" in host:
        raise ValueError("a host cannot have a zone")
    address = literal(host)
    if address is not None:
        return str(address)
    try:
        name = host.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        name = ""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{host!r} is not a host")
    return name


def literal(host: str) -> Address | None:
    """The address that a host is written as; None: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def may_reach(address: Address, *, inner: bool) -> bool:
    """Whether a name may lead to an address: a public one or, with ``inner``, one of the networks
    that are private. Link-local, multicast and unspecified addresses never, nor IPv4 written as
    IPv6 but for NAT64 of an address that may be reached."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in _INNER):
        return inner
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)
