"""Fetching over HTTP from servers that mislead, stall and lie."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from ipaddress import ip_address

import httpcore2 as httpcore
import pytest
import trustme

from corral.backend.errors import Refused
from corral.backend.media.hosts import Address, parse_allowed
from corral.backend.media.policy import MediaPolicy
from corral.backend.media.remote import Network
from corral.backend.media.sources import load

Answer = Callable[[str, dict[str, str], asyncio.StreamWriter], Awaitable[None]]
PUBLIC, OTHER, INNER = "93.184.215.14", "2606:2800:21f:cb07::1", "127.0.0.1"


def ok(body: bytes, extra: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def moved(to: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


class World(httpcore.AsyncNetworkBackend):
    """An internet of one server: whatever address is asked for leads to it, and is noted."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | Answer] = {}
        self.names: dict[str, list[list[str]]] = {}
        self.connected: list[str] = []
        self.asked: list[str] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.port = 0
        self.dead: set[str] = set()

    @property
    def network(self) -> Network:
        return Network(self.resolve, self)

    async def resolve(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        answers = self.names[host]
        if not answers:
            raise OSError("no such name")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(address) for address in found]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        ip_address(host)  # a name here would be resolved a second time
        self.connected.append(host)
        if host in self.dead:
            raise httpcore.ConnectError("nobody")
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self.port, timeout)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            path = first.split(" ")[1]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            self.requests.append((path, headers))
            page = self.pages[path]
            if isinstance(page, bytes):
                writer.write(page)
                await writer.drain()
            else:
                await page(path, headers, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as it should from some of these
        finally:
            writer.close()


@asynccontextmanager
async def served(tls: ssl.SSLContext | None = None) -> AsyncIterator[World]:
    world = World()
    server = await asyncio.start_server(world.serve, "127.0.0.1", 0, ssl=tls)
    world.port = server.sockets[0].getsockname()[1]
    async with server:
        yield world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with served() as one:
        one.names = {"pictures.test": [[PUBLIC]], "inner.test": [[INNER]], "gone.test": []}
        one.pages = {"/a.png": ok(b"pixels")}
        yield one


def policy(*allow: str, **others: float) -> MediaPolicy:
    rules = tuple(parse_allowed(text) for text in allow or ("*",))
    return MediaPolicy(allow=rules, **others)  # type: ignore[arg-type]


async def fetched(world: World, url: str, rules: MediaPolicy | None = None) -> bytes:
    return await load(url, param="p", policy=rules or policy(), network=world.network)


async def refusal(world: World, url: str, rules: MediaPolicy | None = None) -> str:
    with pytest.raises(Refused) as caught:
        await fetched(world, url, rules)
    assert (caught.value.wire.status, caught.value.param) == (400, "p")
    assert INNER not in caught.value.message or INNER in url
    return caught.value.message


async def test_what_is_at_an_allowed_url_is_fetched_without_cookies_names_or_compression(
    world: World,
) -> None:
    assert await fetched(world, "http://pictures.test/a.png#part") == b"pixels"
    ((path, headers),) = world.requests
    assert path == "/a.png"
    assert headers["host"] == "pictures.test"
    assert headers["accept-encoding"] == "identity"
    assert not {"cookie", "authorization", "referer"} & set(headers)


async def test_nothing_is_fetched_by_default(world: World) -> None:
    message = await refusal(world, "http://pictures.test/a.png", MediaPolicy())
    assert "--media-url-allow" in message
    assert world.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/a.png",
        "https://pictures.test/a.png",
        "http://pictures.test:8080/a.png",
        "http://pictures.test.evil.test/a.png",
        "http://evil-pictures.test/a.png",
        "http://sub.pictures.test/a.png",
    ],
)
async def test_a_place_that_is_not_listed_is_not_even_looked_up(world: World, url: str) -> None:
    assert "--media-url-allow" in await refusal(world, url, policy("http://pictures.test"))
    assert world.asked == world.connected == []


@pytest.mark.parametrize(
    "url",
    [
        "http://user@pictures.test/",
        "http://user:pass@pictures.test/",
        "http://@pictures.test/",
        "http://pictures.test\\@evil.test/",
        "http://evil.test\t.pictures.test/",
        "http://pictures.test/a\r\nHost: evil.test",
        "http:///a.png",
        "http://",
        "http:a.png",
        "http://pictures.test:0/",
        "http://pictures.test:99999/",
        "http://[::1/",
        "http://pictures.test/\ud800",
        "http://\ud800.test/",
        "http://[fe80::1%25eth0]/",
        "http://a..test/",
        "http://" + "a" * 300 + ".test/",
    ],
)
async def test_a_url_that_parsers_read_differently_is_refused(world: World, url: str) -> None:
    await refusal(world, url)
    assert world.asked == world.connected == []


ADDRESSES = [
    "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.31.255.255", "192.168.1.1", "100.100.100.200",
    "169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.0.8", "192.0.2.1",
    "198.18.0.1", "240.0.0.1", "168.63.129.16", "::", "::1", "fe80::1", "fd00:ec2::254",
    "ff02::1", "::ffff:127.0.0.1", "::ffff:93.184.215.14", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:5db8:d70e::1",
    "2001:0:5db8::1", "2001:db8::1", "fec0::1", "100::1",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_name_that_leads_into_no_public_network_is_refused(
    world: World, address: str
) -> None:
    world.names["pictures.test"] = [[PUBLIC, address]]
    message = await refusal(world, "http://pictures.test/a.png")
    assert "public internet" in message and address not in message
    literal = f"[{address}]" if ":" in address else address
    await refusal(world, f"http://{literal}/a.png")
    assert world.connected == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost"])
async def test_other_spellings_of_this_machine_are_names_and_resolved_before_they_are_judged(
    world: World, host: str
) -> None:
    world.names[host] = [[INNER]]
    assert "public internet" in await refusal(world, f"http://{host}/a.png")


@pytest.mark.parametrize("address", [PUBLIC, OTHER, "64:ff9b::5db8:d70e"])
async def test_public_addresses_are_reached_also_through_nat64(world: World, address: str) -> None:
    world.names["pictures.test"] = [[address]]
    assert await fetched(world, "http://pictures.test/a.png") == b"pixels"
    assert world.connected == [address]


async def test_an_inner_address_is_reached_if_it_is_listed_itself(world: World) -> None:
    rules = policy("http://127.0.0.1:8000", "*")
    assert await fetched(world, "http://127.0.0.1:8000/a.png", rules) == b"pixels"
    await refusal(world, "http://127.0.0.1/a.png", rules)
    await refusal(world, "http://127.0.0.2:8000/a.png", rules)
    world.names["inner.test"] = [[INNER]]
    await refusal(
        world, "http://inner.test:8000/a.png", policy("127.0.0.1:8000", "inner.test:8000")
    )


async def test_inner_names_are_reached_if_the_policy_says_so_but_never_link_local(
    world: World,
) -> None:
    rules = policy("inner.test", private=True)
    assert await fetched(world, "http://inner.test/a.png", rules) == b"pixels"
    world.names["inner.test"] = [["169.254.169.254"]]
    await refusal(world, "http://inner.test/a.png", rules)


async def test_the_connection_goes_to_the_address_that_was_checked(world: World) -> None:
    """The name leads elsewhere the second time it is asked for; nobody asks twice."""
    world.names["pictures.test"] = [[PUBLIC], [INNER]]
    assert await fetched(world, "http://pictures.test/a.png") == b"pixels"
    assert world.asked == ["pictures.test"]
    assert world.connected == [PUBLIC]


async def test_each_redirect_is_resolved_and_checked_anew(world: World) -> None:
    world.names["pictures.test"] = [[PUBLIC], [INNER]]
    world.pages["/moved"] = moved("/a.png")
    assert "public internet" in await refusal(world, "http://pictures.test/moved")
    assert world.connected == [PUBLIC]


async def test_a_dead_address_is_passed_over(world: World) -> None:
    world.names["pictures.test"] = [[OTHER, PUBLIC]]
    world.dead = {OTHER}
    assert await fetched(world, "http://pictures.test/a.png") == b"pixels"
    assert world.connected == [OTHER, PUBLIC]
    world.dead = {OTHER, PUBLIC}
    assert "no connection" in await refusal(world, "http://pictures.test/a.png")


async def test_a_name_without_addresses_is_refused(world: World) -> None:
    assert "no address" in await refusal(world, "http://gone.test/a.png")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed_where_they_may_lead(world: World, status: int) -> None:
    world.names["cdn.test"] = [[OTHER]]
    world.pages["/moved"] = moved("//cdn.test/a.png", status)
    assert await fetched(world, "http://pictures.test/moved") == b"pixels"
    assert world.connected == [PUBLIC, OTHER]


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1/a.png",
        "http://127.0.0.1:22/",
        "http://[::1]/a.png",
        "http://inner.test/a.png",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "ftp://pictures.test/a.png",
        "data:image/png;base64,AAAA",
        "http://user:pass@pictures.test/a.png",
        "http://pictures.test/a b.png",
        "http://[",
        "//[::1",
    ],
)
async def test_a_redirect_to_where_nobody_may_go_is_refused(world: World, to: str) -> None:
    world.pages["/moved"] = moved(to)
    message = await refusal(world, "http://pictures.test/moved")
    assert "redirects" in message and "inner" not in message
    assert world.connected == [PUBLIC]


async def test_a_redirect_out_of_the_list_is_refused_without_saying_where_to(world: World) -> None:
    world.pages["/moved"] = moved("http://secret.test/a.png")
    message = await refusal(world, "http://pictures.test/moved", policy("pictures.test"))
    assert "secret" not in message
    assert world.asked == ["pictures.test"]


async def test_redirects_in_a_circle_end(world: World) -> None:
    world.pages["/moved"] = moved("/moved")
    message = await refusal(world, "http://pictures.test/moved", policy(max_redirects=2))
    assert "more than 2 times" in message
    assert len(world.requests) == 3


@pytest.mark.parametrize("status", ["404 Not Found", "500 No", "204 No Content", "206 Part"])
async def test_any_other_status_is_named(world: World, status: str) -> None:
    world.pages["/x"] = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()
    assert f"status {status[:3]}" in await refusal(world, "http://pictures.test/x")


async def test_a_body_is_refused_by_its_declared_length(world: World) -> None:
    world.pages["/x"] = b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"
    message = await refusal(world, "http://pictures.test/x", policy(max_bytes=1000))
    assert "more than 1000 bytes" in message
    world.pages["/x"] = ok(bytes(1000))
    rules = policy(max_bytes=1000)
    assert await fetched(world, "http://pictures.test/x", rules) == bytes(1000)


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_endless_body_is_cut_at_the_limit(world: World, chunked: bool) -> None:
    async def endless(path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        writer.write(b"HTTP/1.1 200 OK\r\n" + coding + b"\r\n")
        while True:
            writer.write(b"400\r\n" + bytes(1024) + b"\r\n" if chunked else bytes(1024))
            await writer.drain()

    world.pages["/x"] = endless
    message = await refusal(world, "http://pictures.test/x", policy(max_bytes=100_000))
    assert "more than 100000 bytes" in message


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\npix"])
async def test_a_server_that_stalls_is_left_in_time(world: World, sent: bytes) -> None:
    async def stall(path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        await writer.wait_closed()

    world.pages["/x"] = stall
    message = await refusal(world, "http://pictures.test/x", policy(total_s=0.1))
    assert "within 0.1 s" in message


async def test_a_resolver_that_stalls_is_left_in_time(world: World) -> None:
    async def never(host: str, port: int) -> list[Address]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(Refused, match=r"within 0\.1 s"):
        await load(
            "http://pictures.test/a.png",
            param="p",
            policy=policy(total_s=0.1),
            network=Network(never, world),
        )


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_refused_and_says_nothing_of_it(world: World, page: bytes) -> None:
    world.pages["/x"] = page
    assert "broken answer" in await refusal(world, "http://pictures.test/x")


async def test_a_compressed_answer_is_refused(world: World) -> None:
    world.pages["/x"] = ok(b"\x1f\x8b", "Content-Encoding: gzip\r\n")
    assert "compressed" in await refusal(world, "http://pictures.test/x")


async def test_proxies_of_the_environment_are_not_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://proxy.test:3128")
    assert await fetched(world, "http://pictures.test/a.png") == b"pixels"
    assert world.connected == [PUBLIC]


async def test_letters_beyond_ascii_in_a_url_are_encoded(world: World) -> None:
    world.names["xn--bcher-kva.test"] = [[PUBLIC]]
    world.pages["/%C3%A4.png?q=%C3%B6"] = ok(b"pixels")
    rules = policy("bücher.test")
    assert await fetched(world, "http://BÜCHER.test/ä.png?q=ö", rules) == b"pixels"
    assert world.requests[0][1]["host"] == "xn--bcher-kva.test"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize(
    ("issued_to", "is_right"), [("pictures.test", True), ("other.test", False)]
)
async def test_a_pinned_connection_is_still_certified_for_the_name(
    authority: trustme.CA, issued_to: str, is_right: bool
) -> None:
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(ours)
    authority.issue_cert(issued_to).configure_cert(theirs)
    asked: list[str | None] = []
    theirs.sni_callback = lambda _, name, __: asked.append(name)
    async with served(theirs) as world:
        world.names = {"pictures.test": [[PUBLIC]]}
        world.pages = {"/a.png": ok(b"pixels")}
        network = Network(world.resolve, world, ours)
        loading = load("https://pictures.test/a.png", param="p", policy=policy(), network=network)
        if is_right:
            assert await loading == b"pixels"
        else:
            with pytest.raises(Refused, match="no connection"):
                await loading
    assert asked == ["pictures.test"]
    assert world.connected == [PUBLIC]


async def test_the_system_finds_this_machine_and_the_policy_refuses_it(world: World) -> None:
    url = f"http://localhost:{world.port}/a.png"
    with pytest.raises(Refused, match="public internet"):
        await load(url, param="p", policy=policy("*:*"))
    rules = policy(f"localhost:{world.port}", private=True)
    assert await load(url, param="p", policy=rules) == b"pixels"


async def test_without_other_trust_the_systems_certificates_count(authority: trustme.CA) -> None:
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("pictures.test").configure_cert(theirs)
    async with served(theirs) as world:
        world.names = {"pictures.test": [[PUBLIC]]}
        assert "no connection" in await refusal(world, "https://pictures.test/a.png")
        assert world.requests == []
