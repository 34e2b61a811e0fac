"""Clients that stand still."""

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx


def test_a_body_that_does_not_go_on_is_408(run_server: Callable[..., Any]) -> None:
    with run_server(timeout_s=0.2) as server, socket.create_connection(server.address) as raw:
        raw.settimeout(10)
        head = "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        raw.sendall(head.encode() + b'{"prompt": ')
        answer = b"".join(iter(lambda: raw.recv(65536), b""))  # to the connection's end
        assert answer.startswith(b"HTTP/1.1 408 ") and b"request_timeout" in answer


def test_an_answer_may_take_its_time(run_server: Callable[..., Any]) -> None:
    with run_server(timeout_s=0.1) as server:
        server.control(step_ms=150.0)
        body = {"prompt": "hello", "n_predict": 4}
        answer = httpx.post(server.url + "/completion", json=body, timeout=20)
        assert answer.json()["tokens_predicted"] == 4


def test_a_client_that_takes_nothing_loses_its_slot(run_server: Callable[..., Any]) -> None:
    with run_server(timeout_s=0.2, n_ctx=1_000_000) as server:
        server.control(step_ms=0.0)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with raw:
            raw.connect(server.address)
            body = json.dumps({"stream": True, "prompt": "x" * 50_000}).encode()
            head = "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            raw.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
            server.until(lambda s: any(x.state == "generating" for x in s.slots))
            server.until_idle()
            assert server.service.snapshot.counters.predicted_tokens < 50_000
