"""The server and its client, in one process over a real connection, and clients that misbehave."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from strategies.monitoring import server as serving
from strategies.monitoring import traces
from strategies.monitoring.client import Client, ClientError, GoneError
from strategies.monitoring.reports import to_text
from strategies.monitoring.server import StatusServer, serve
from strategies.monitoring.settings import StatusSettings
from strategies.monitoring.store import MemoryStore
from tests.strategies.monitoring.made import LAUNCHER, OTHER, RANK

TOKEN = "the token"
PATHS = ("/", "/status.json", "/metrics", "/trace/1", "/nothing")


def filled() -> MemoryStore:
    store = MemoryStore()
    store.post("rank", 0, to_text(RANK))
    store.post("rank", 1, to_text(OTHER))
    store.post("launcher", 0, to_text(LAUNCHER))
    return store


@pytest.fixture(scope="module")
def opened() -> Iterator[StatusServer]:
    server = serve(StatusSettings(0), filled())
    yield server
    server.close()


@pytest.fixture(scope="module")
def closed() -> Iterator[StatusServer]:
    server = serve(StatusSettings(0, token=TOKEN), filled())
    yield server
    server.close()


def asked(server: StatusServer, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(server.address, timeout=60)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def test_what_is_served(opened: StatusServer) -> None:
    client = Client(opened.url)
    assert client.status().ranks[1].report == OTHER
    assert json.loads(client.read("/status.json"))["world_size"] == 2
    assert "keras_strategies_ranks 2\n" in client.read("/metrics")
    assert client.read("/").startswith("<!doctype html>")
    with pytest.raises(ClientError, match=r"There are /, /status\.json and /metrics"):
        client.read("/nothing")


def test_the_page_loads_nothing_from_elsewhere(opened: StatusServer) -> None:
    response, text = asked(opened, "/")
    assert not re.findall(r"https?://|//[a-z]", text.replace("// ", ""))
    assert "default-src 'none'" in str(response.getheader("Content-Security-Policy"))
    assert response.getheader("Cache-Control") == "no-store"


def test_a_head_has_no_body(opened: StatusServer) -> None:
    response, text = asked(opened, "/status.json", "HEAD")
    assert (response.status, text) == (200, "")
    assert int(response.getheader("Content-Length") or 0) > 100


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(opened: StatusServer, method: str) -> None:
    assert asked(opened, "/status.json", method)[0].status in (404, 501)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("authorization", [{}, {"Authorization": "Bearer wrong"}], ids=["no token", "a wrong token"])
def test_a_stranger_gets_nothing(closed: StatusServer, path: str, authorization: dict[str, str]) -> None:
    for method in ("GET", "HEAD", "POST"):
        response, text = asked(closed, path, method, **authorization)
        assert response.status == 401
        assert str(response.getheader("WWW-Authenticate")).startswith("Basic ")
        assert "rank" not in text
        assert TOKEN not in text


def test_who_has_the_token_gets_everything(closed: StatusServer) -> None:
    assert Client(closed.address, TOKEN).status().world_size == 2
    with pytest.raises(ClientError, match="needs the token of the job, and it is missing"):
        Client(closed.address).status()
    with pytest.raises(ClientError, match="needs the token of the job, and it does not fit"):
        Client(closed.address, "wrong").status()


def test_another_name_for_loopback_gets_nothing(opened: StatusServer) -> None:
    response, text = asked(opened, "/status.json", Host="evil.example")
    assert (response.status, "rank" in text) == (403, False)


def test_a_trace(closed: StatusServer) -> None:
    client = Client(closed.address, TOKEN)
    answers = {0: traces.TraceAnswer(0, events="[1]"), 1: traces.TraceAnswer(1, error="no")}

    def answer(seconds: float) -> None:
        request = traces.read_request(closed.store)
        assert request is not None
        for rank, each in answers.items():
            closed.store.post(traces.answer_key(request.id), rank, to_text(each))

    trace = client.trace(5, sleep=answer)
    assert (trace.start_step, trace.num_steps) == (280, 5)
    assert (dict(trace.events), dict(trace.errors)) == ({0: "[1]"}, {1: "no"})
    late = client.trace(6, timeout_seconds=0.0)
    assert dict(late.errors) == dict.fromkeys((0, 1), "it has sent nothing within 0 s")
    with pytest.raises(ClientError, match="A trace is being recorded: rank 0, 1"):
        client.trace(5)


def test_a_trace_is_not_for_pages_of_other_sites(opened: StatusServer) -> None:
    assert asked(opened, "/trace?steps=5", "POST", Origin="http://evil.example")[0].status == 404
    assert asked(opened, "/trace?steps=5")[0].status == 404
    assert traces.read_request(opened.store) is None
    assert "from 1 to 100." in asked(opened, "/trace?steps=x", "POST")[1]


@pytest.mark.parametrize(
    "data", [b"", b"\0\xff" * 100 + b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000]
)
def test_nonsense_does_no_harm(opened: StatusServer, data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(opened.socket.getsockname(), timeout=60) as connection:
        connection.sendall(data)
    assert Client(opened.address).status().world_size == 2
    assert capfd.readouterr().err == ""


def test_clients_that_say_nothing_do_not_fill_the_process(opened: StatusServer) -> None:
    silent = [socket.create_connection(opened.socket.getsockname(), timeout=60) for _ in range(80)]
    try:
        # The last ones are dropped: at most 32 have a thread.
        assert silent[-1].recv(1) == b""
        assert sum(thread.name.startswith("Thread") for thread in threading.enumerate()) <= 40
    finally:
        for connection in silent:
            connection.close()
    while True:
        # Once the server has noticed that they are gone, it answers again.
        try:
            assert Client(opened.address).status().world_size == 2
        except ClientError:
            continue
        break


def test_a_request_that_comes_slowly_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of these, each read of which is in time, would otherwise keep all others out."""
    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 0.2)
    server = serve(StatusSettings(0), MemoryStore())
    try:
        with socket.create_connection(server.socket.getsockname(), timeout=0.02) as connection:
            deadline = time.monotonic() + 60
            with contextlib.suppress(ConnectionError):
                while True:
                    assert time.monotonic() < deadline
                    connection.sendall(b"G")
                    with contextlib.suppress(TimeoutError):
                        assert connection.recv(1) == b""
                        break
        monkeypatch.undo()
        assert Client(server.address).status().world_size == 0
    finally:
        server.close()


def test_after_its_end_nobody_listens() -> None:
    server = serve(StatusSettings(0), MemoryStore())
    client = Client(server.address)
    assert client.status().world_size == 0
    server.close()
    with pytest.raises(GoneError, match=r"Nobody listens at 127\.0\.0\.1"):
        client.status()


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        serve(StatusSettings(other.getsockname()[1]), MemoryStore())


@pytest.mark.parametrize("address", ["", "host", "host:", "host:0", "host:x", "host:70000"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ClientError, match="Expected host:port"):
        Client(address)


def test_what_is_no_status() -> None:
    """Another program answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClientError, match="is no status of a job"):
            Client(f"127.0.0.1:{listener.getsockname()[1]}").status()
        thread.join(60)
