"""Where a server listens: TLS, UNIX sockets, several addresses, a port shared."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from corral.backend.listening import CannotListen, listening, url

Start = Callable[..., "tuple[subprocess.Popen[str], str]"]
COMMAND = (sys.executable, "-m", "corral.backend", "serve", "--fake")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers, and says where they listen; they end well."""
    running: list[subprocess.Popen[str]] = []

    def one(*flags: str) -> "tuple[subprocess.Popen[str], str]":
        process = subprocess.Popen(
            [*COMMAND, "--port", "0", "--data-dir", str(tmp_path), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("Ready: "))
        return process, line.split()[1]

    yield one
    for process in running:
        with process:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            finally:
                process.kill()
        assert process.returncode == 0


def failed_start(tmp_path: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """A start that comes to nothing."""
    return subprocess.run(
        [*COMMAND, "--data-dir", str(tmp_path), *flags],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> tuple[str, str]:
    """The files of a certificate for 127.0.0.1 and its key."""
    issued = authority.issue_cert("127.0.0.1", "localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    return str(certificate), str(key)


# --- TLS ----------------------------------------------------------------------------------------


def test_with_a_certificate_clients_speak_https_and_nothing_else(
    start: Start, authority: trustme.CA, files: tuple[str, str]
) -> None:
    certificate, key = files
    _, where = start("--ssl-cert-file", certificate, "--ssl-key-file", key)
    assert where.startswith("https://127.0.0.1:")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with httpx.Client(verify=context, timeout=20) as http:
        assert http.get(where + "/health").json() == {"status": "ok"}
        client = openai.OpenAI(api_key="-", base_url=where + "/v1", http_client=http)
        stream = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    with pytest.raises(httpx.TransportError):
        httpx.get(where.replace("https", "http") + "/health")
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(where + "/health")


def test_the_key_cookie_of_an_https_page_travels_over_https_only(
    start: Start, authority: trustme.CA, files: tuple[str, str]
) -> None:
    certificate, key = files
    _, where = start("--ssl-cert-file", certificate, "--ssl-key-file", key, "--api-key", "sesame")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    answer = httpx.post(where + "/login", data={"key": "sesame"}, verify=context)
    assert "; secure" in answer.headers["set-cookie"].lower()


def test_a_certificate_that_cannot_be_used_is_one_line_and_a_usage_error(
    files: tuple[str, str], tmp_path: Path
) -> None:
    certificate, key = files
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    locked = tmp_path / "locked.pem"
    private = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    for flags, said in (
        (["--ssl-cert-file", certificate], "--ssl-key-file is missing"),
        (["--ssl-key-file", key], "--ssl-cert-file is missing"),
        (["--ssl-cert-file", certificate, "--ssl-key-file", str(other)], "KEY_VALUES_MISMATCH"),
        (["--ssl-cert-file", certificate, "--ssl-key-file", str(locked)], "cannot be used"),
        (["--ssl-cert-file", key, "--ssl-key-file", key], "cannot be used"),
        (["--ssl-cert-file", certificate, "--ssl-key-file", "/none"], "No such file"),
    ):
        ended = failed_start(tmp_path, *flags)
        assert ended.returncode == 2, ended.stderr
        assert said in ended.stderr and len(ended.stderr.splitlines()) == 1


# --- UNIX sockets ---------------------------------------------------------------------------------


def over(path: Path) -> httpx.Client:
    """A client of the socket at a path."""
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any.name")


def test_a_unix_socket_serves_and_is_gone_afterwards(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "corral.sock"
    process, where = start("--host", str(path))
    assert where == f"unix:{path}"
    with over(path) as http:
        assert http.get("/health").status_code == 200
        answer = http.post("/completion", json={"prompt": "a", "n_predict": 2})
        assert answer.json()["tokens_predicted"] == 2
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert not path.exists()


def test_the_umask_says_who_may_use_the_socket(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with listening([str(tmp_path / "a.sock")], 0):
            assert (tmp_path / "a.sock").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "corral.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    start("--host", str(path))
    second = failed_start(tmp_path, "--host", str(path))
    assert second.returncode == 1
    assert second.stderr == f"corral: cannot listen at {path}: address already in use\n"
    with over(path) as http:
        assert http.get("/health").status_code == 200


def test_a_file_in_the_place_of_a_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file.sock"
    path.write_text("precious")
    with pytest.raises(CannotListen, match="address already in use"), listening([str(path)], 0):
        pass
    assert path.read_text() == "precious"
    with pytest.raises(CannotListen, match=r"no such file"), listening(["/none/a.sock"], 0):
        pass


# --- addresses ------------------------------------------------------------------------------------


def test_several_addresses_share_a_port_and_serve_alike(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "b.sock"
    _, where = start("--host", f"127.0.0.1,127.0.0.2,{path}")
    assert httpx.get(where + "/health").status_code == 200
    assert httpx.get(where.replace("127.0.0.1", "127.0.0.2") + "/health").status_code == 200
    with over(path) as http:
        assert http.get("/v1/models").status_code == 200
    # A page whose name someone else points to this machine still learns nothing.
    assert httpx.get(where + "/v1/models", headers={"Host": "evil.test"}).status_code == 403


def test_a_port_can_be_shared_by_processes_that_both_say_so(start: Start, tmp_path: Path) -> None:
    _, where = start("--reuse-port")
    port = where.rpartition(":")[2]
    _, again = start("--reuse-port", "--port", port)
    assert again == where
    assert failed_start(tmp_path, "--port", port).returncode == 1
    assert httpx.get(where + "/health").status_code == 200


def test_a_name_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    ended = failed_start(tmp_path, "--host", "no-such-host.invalid")
    assert ended.returncode == 1
    assert ended.stderr.startswith("corral: cannot listen at no-such-host.invalid:8080: ")
    assert len(ended.stderr.splitlines()) == 1


def test_an_address_is_written_as_people_type_it() -> None:
    with listening(["127.0.0.1"], 0) as (plain,):
        port = plain.getsockname()[1]
        assert url(plain, tls=False) == f"http://127.0.0.1:{port}"
        assert url(plain, tls=True, prefix="/x") == f"https://127.0.0.1:{port}/x"
    if socket.has_ipv6:
        with listening(["::1"], 0) as (six,):
            assert url(six, tls=False) == f"http://[::1]:{six.getsockname()[1]}"
