"""The rendezvous of nodes, in threads of one process: waiting, refusals, and connections that are ignored."""

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from strategies import control_plane
from strategies.control_plane.channel import MAX_MESSAGE_BYTES
from strategies.launching import endpoint as endpoints
from strategies.launching.coordinator import Policy
from strategies.launching.endpoint import Endpoint
from strategies.launching.messages import Node
from strategies.launching.nodes import Rendezvous, announcement, rendezvous
from strategies.launching.ports import LaunchError
from tests.clock import Clock
from tests.processes import free_ports

LOOPBACK = "127.0.0.1"
GONE = b'{"node_rank": 1, "num_nodes": 3, "host": "gone", "ports": [5], "hostname": "x", "pid": 1, "token": "t"}'
NODE_1_OF_3 = b'{"protocol": "strategies.launch 3", "node": %s}\n' % GONE
Meeting = Future[Rendezvous]


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def nobody(text: str) -> None:
    """Ignores the messages about waits."""


def node(rank: int, num_nodes: int) -> Node:
    return announcement(rank, num_nodes, tuple(range(100 * rank + 1, 101 * rank + 2)), "" if rank else LOOPBACK)


def endpoint(port: int, seconds: float = 100.0, host: str = LOOPBACK, notice_seconds: float = 10.0) -> Endpoint:
    return Endpoint(host, port, seconds, notice_seconds)


def comes(pool: ThreadPoolExecutor, rank: int, num_nodes: int, at: Endpoint) -> Meeting:
    return pool.submit(rendezvous, node(rank, num_nodes), at, log=nobody)


def close(found: Rendezvous) -> None:
    for link in found.links.values():
        link.close()


def message_of(meeting: Meeting) -> str:
    error = meeting.exception(timeout=100)
    assert isinstance(error, LaunchError)
    return str(error)


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((LOOPBACK, port), timeout=30)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_all_arrive_whatever_else_knocks(pool: ThreadPoolExecutor, port: int) -> None:
    meetings = [comes(pool, 0, 3, endpoint(port)), comes(pool, 2, 3, endpoint(port))]
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"[" * 100_000 + b"\n", b"{}\n", b"x" * (2 * MAX_MESSAGE_BYTES)]
    nodes = [b"3", b"{}", b"[]", GONE.replace(b"[5]", b"[0]"), GONE.replace(b"1,", b'"1",'), GONE.replace(b"3", b"1")]
    garbage += [b'{"protocol": "strategies.launch 3", "node": %s}\n' % node for node in nodes]
    garbage += [NODE_1_OF_3.replace(b"launch 3", b"launch 1"), b'{"protocol": "strategies.launch 3"}\n']
    for text in garbage:
        # The connection is closed, or reset if the guest was still sending.
        with connected(port) as guest, contextlib.suppress(ConnectionError):
            guest.sendall(text)
            assert guest.recv(1) == b""
    with connected(port):
        meetings.insert(1, comes(pool, 1, 3, endpoint(port)))
        found = [meeting.result(timeout=100) for meeting in meetings]
    assert sorted(found[0].nodes) == [0, 1, 2]
    assert [sorted(each.links) for each in found] == [[1, 2], [0], [0]]
    assert found[0].nodes[2].addresses == ("127.0.0.1:201", "127.0.0.1:202", "127.0.0.1:203")
    assert {(each.hostname, each.pid) for each in found[0].nodes.values()} == {(socket.gethostname(), os.getpid())}
    for each in found:
        close(each)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Returns the clock of all countdowns and of the waits for answers."""
    clock = Clock()
    monkeypatch.setattr(control_plane.rendezvous, "time", clock)
    return clock


def test_the_missing_are_named_everywhere(pool: ThreadPoolExecutor, port: int, clock: Clock) -> None:
    logged: list[str] = []
    # The wait of a node has this step in real time, too.
    at = endpoint(port, 1000.0, notice_seconds=0.05)
    meetings = [pool.submit(rendezvous, node(rank, 4), at, log=logged.append) for rank in (0, 2)]

    def all_are_there() -> bool:
        clock.sleep(0.05)
        return any(line.endswith(f" at {LOOPBACK}:{port} for node 1, 3.") for line in logged)

    until(all_are_there)
    clock.seconds = 1000.5
    for meeting in meetings:
        expected = f"Of 4 nodes, these did not connect to {LOOPBACK}:{port} within 1000 s: node 1, 3."
        assert expected in message_of(meeting)


def test_a_missing_node_0(pool: ThreadPoolExecutor, port: int) -> None:
    message = message_of(comes(pool, 1, 2, endpoint(port, 0.2)))
    assert f"Node 1 did not reach node 0 at {LOOPBACK}:{port} within 0.2 s: " in message
    assert "refused" in message


def test_the_wait_is_logged(pool: ThreadPoolExecutor, port: int, clock: Clock) -> None:
    logged: dict[int, list[str]] = {0: [], 1: []}
    at = endpoint(port, 1000.0, notice_seconds=0.05)
    own = re.escape(f"({socket.gethostname()})")
    alone = rf"node 1 {own} has waited \d+ s of 1000 s for node 0 at {LOOPBACK}:{port}: Connection refused\."
    both = rf"node 0 {own} has waited \d+ s of 1000 s at {LOOPBACK}:{port} for node 2\."

    def is_logged(rank: int, pattern: str) -> bool:
        clock.sleep(0.05)
        return any(re.fullmatch(pattern, line) for line in logged[rank])

    second = pool.submit(rendezvous, node(1, 3), at, log=logged[1].append)
    until(lambda: is_logged(1, alone))
    first = pool.submit(rendezvous, node(0, 3), at, log=logged[0].append)
    until(lambda: is_logged(1, both))
    clock.seconds = 1001.0
    assert message_of(first) == message_of(second)
    together = [line for line in logged[1] if not re.fullmatch(alone, line)]
    assert 0 < len(together) < len(logged[1])
    assert together == logged[0][-len(together) :]
    assert re.fullmatch(both, together[-1])


@pytest.mark.parametrize(
    ("rank", "num_nodes", "expected"),
    [
        (2, 4, "started with --nnodes 4, node 0 with --nnodes 3"),
        (
            1,
            3,
            r"Two nodes, at x \(address gone, pid 1\) and at .* --node-rank 1. It must be .* on each, 0 to 2",
        ),
    ],
)
def test_who_does_not_fit_ends_it_everywhere(
    rank: int, num_nodes: int, expected: str, pool: ThreadPoolExecutor, port: int
) -> None:
    first = comes(pool, 0, 3, endpoint(port))
    with connected(port) as guest:
        guest.sendall(NODE_1_OF_3)
        meetings = [first, comes(pool, rank, num_nodes, endpoint(port))]
        messages = [message_of(meetings[1]), guest.recv(1 << 16).decode()]
    for message in [*messages, message_of(meetings[0])]:
        assert re.search(expected, message)


def test_a_check_that_fails_ends_it_everywhere(pool: ThreadPoolExecutor, port: int) -> None:
    check = Policy(min_procs=4).check
    meetings = [pool.submit(rendezvous, node(rank, 2), endpoint(port), check, nobody) for rank in (0, 1)]
    for meeting in meetings:
        assert "must not exceed the number of processes of all nodes, 3. Received: 4" in message_of(meeting)


def test_a_node_started_again_takes_its_place(pool: ThreadPoolExecutor, port: int) -> None:
    first = comes(pool, 0, 3, endpoint(port))
    with connected(port) as guest:
        guest.sendall(NODE_1_OF_3)
    others = [comes(pool, rank, 3, endpoint(port)) for rank in (1, 2)]
    found = [meeting.result(timeout=100) for meeting in (first, *others)]
    assert found[0].nodes[1].host == LOOPBACK
    for each in found:
        close(each)


class TestTwoNodesZero:
    def test_on_one_host(self, pool: ThreadPoolExecutor, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        # The first answers; neither waits for its time to be over.
        monkeypatch.setattr(endpoints, "_ANSWER_SECONDS", 1000.0)
        first = comes(pool, 0, 2, endpoint(port, 1000.0))
        connected(port).close()
        second = comes(pool, 0, 2, endpoint(port, 1000.0))
        own = re.escape(f"{socket.gethostname()} (address {LOOPBACK}, pid {os.getpid()})")
        for meeting in (first, second):
            assert re.search(f"Two nodes, at {own} and at {own}, were started with --node-rank 0.", message_of(meeting))

    @pytest.mark.parametrize("first_is_late", [False, True])
    def test_on_two_hosts(
        self, first_is_late: bool, pool: ThreadPoolExecutor, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second listens on all interfaces of its own host; the first has another host: here, another port."""
        here, there = endpoint(port), endpoint(free_ports(1)[0], host="far.example")
        resolve = socket.getaddrinfo

        def far(host: str, at: int, *args: Any, **settings: Any) -> object:
            return resolve(*((LOOPBACK, port) if host == "far.example" else (host, at)), *args, **settings)

        monkeypatch.setattr(socket, "getaddrinfo", far)
        meetings = []
        for at in (there, here) if first_is_late else (here, there):
            meetings.append(comes(pool, 0, 2, at))
            connected(at.port).close()
        for meeting in meetings:
            assert "were started with --node-rank 0" in message_of(meeting)

    def test_one_that_reaches_itself_goes_on(
        self, pool: ThreadPoolExecutor, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at, has_reached, close_probe = endpoint(port, host="localhost"), threading.Event(), endpoints.Probe.close

        def closed(probe: endpoints.Probe) -> None:
            close_probe(probe)
            has_reached.set()

        monkeypatch.setattr(endpoints.Probe, "close", closed)
        first = comes(pool, 0, 2, at)
        assert has_reached.wait(60)
        assert not first.done()
        found = [meeting.result(timeout=100) for meeting in (first, comes(pool, 1, 2, endpoint(port)))]
        assert sorted(found[0].nodes) == [0, 1]
        for each in found:
            close(each)


@pytest.mark.parametrize("talks", [False, True])
def test_a_port_in_use_is_named_with_its_holder(
    talks: bool, port: int, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_ANSWER_SECONDS", 0.2)
    with socket.create_server((LOOPBACK, port)) as listener:
        if talks:
            pool.submit(lambda: listener.accept()[0].close())
        with pytest.raises(LaunchError, match=rf"{port}: the port is in use by .*python.* \(pid {os.getpid()}\)"):
            rendezvous(replace(node(0, 2)), endpoint(port, 1.0), log=nobody)


def test_another_program_at_the_port(pool: ThreadPoolExecutor, port: int) -> None:
    with socket.create_server((LOOPBACK, port)) as listener:
        meeting = comes(pool, 1, 2, endpoint(port))
        guest, _ = listener.accept()
        with guest:
            guest.sendall(b"220 mail.example.com\r\n")
        assert "another program listen there" in message_of(meeting)


@pytest.mark.parametrize(("host", "expected"), [("::1", "[::1]:5"), ("a", "a:5")])
def test_an_ipv6_address_is_in_brackets(host: str, expected: str) -> None:
    assert Node(0, 1, host, (5,)).addresses == (expected,)


def test_nodes_are_checked() -> None:
    def changed(**changes: object) -> Mapping[str, object]:
        return node(0, 2).to_json() | changes

    assert Node.from_json(changed(ports=[1])).ports == (1,)
    changes: list[tuple[str, object]]
    changes = [("node_rank", True), ("node_rank", 2), ("ports", []), ("ports", ["1"]), ("host", 3), ("more", 1)]
    for name, wrong in changes:
        with pytest.raises(ValueError, match="Received"):
            Node.from_json(changed(**{name: wrong}))
