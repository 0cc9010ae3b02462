"""Processes that join, as threads of this one: each has a key-value store of its own."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from strategies.control_plane import JoinError, KeyValueStore, RankInfo, join_job, joining, rendezvous
from tests.clock import Clock
from tests.processes import free_ports

TIMEOUT_SECONDS = 100.0
_made: list[KeyValueStore] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes the `KeyValueStore`s that a test has made, rank 0's last."""
    yield
    for store in sorted(_made, key=lambda store: -store.rank):
        store.close("")
    _made.clear()


def address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def joined(
    infos: Sequence[RankInfo],
    where: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
    problems: dict[int, str] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> list[KeyValueStore | str]:
    """Joins all ranks at the same time; returns for each its `KeyValueStore` or the text of its error."""

    def one(info: RankInfo) -> KeyValueStore | str:
        try:
            own_text = f"text of {info.rank}"
            problem = (problems or {}).get(info.rank)
            store, texts = join_job(info, where, own_text, timeout_seconds, problem=problem, log=log)
        except JoinError as error:
            return str(error)
        _made.append(store)
        assert texts == [f"text of {rank}" for rank in range(info.world_size)]
        return store

    with concurrent.futures.ThreadPoolExecutor(len(infos)) as pool:
        return list(pool.map(one, infos))


def stores(world_size: int, where: str | None = None) -> list[KeyValueStore]:
    made = joined([RankInfo(rank, world_size) for rank in range(world_size)], where or address())
    assert all(isinstance(each, KeyValueStore) for each in made), made
    return [each for each in made if isinstance(each, KeyValueStore)]


def waited(store: KeyValueStore, condition: Callable[[KeyValueStore], bool]) -> bool:
    return store.wait(lambda: condition(store), TIMEOUT_SECONDS)


def test_all_read_what_each_posts_and_learn_who_leaves() -> None:
    all_stores = stores(4)
    for store in all_stores:
        store.post("greeting", f"hello from {store.rank}\nand a line")
    expected = {rank: f"hello from {rank}\nand a line" for rank in range(4)}
    for store in all_stores:
        assert waited(store, lambda store: len(store.read("greeting")) == 4)
        assert store.read("greeting") == expected
    heard: list[tuple[str, int, str]] = []
    all_stores[1].listen(lambda *what: heard.append(what))
    all_stores[3].close("done with it")
    for store in all_stores[:3]:
        assert waited(store, lambda store: 3 in store.left())
        assert store.left() == {3: "done with it"}
    # The connection ends without an exit reason.
    all_stores[2]._links[0]._socket.shutdown(socket.SHUT_RDWR)
    for store in all_stores[:2]:
        assert waited(store, lambda store: 2 in store.left())
        assert list(store.left().items()) == [(3, "done with it"), (2, "")]
    assert heard == [("exit reason", 3, "done with it")]
    # Rank 0 relays the messages of all others; its own end is seen, too.
    all_stores[0].close("over")
    assert all_stores[1].wait(lambda: 0 in all_stores[1].left(), TIMEOUT_SECONDS)


def test_one_who_does_not_read_holds_nobody_up() -> None:
    first, second, third = stores(3)
    large = "x" * 300_000
    lock = third._changed
    lock.acquire()
    try:
        for i in range(100):
            second.post(f"large {i}", large)
        assert first.wait(lambda: bool(first.read("large 99")), TIMEOUT_SECONDS)
    finally:
        lock.release()
    assert third.wait(lambda: bool(third.read("large 99")), TIMEOUT_SECONDS)


def test_the_port_is_free_for_a_server_once_all_have_come() -> None:
    where = address()
    held = stores(3, where)
    host, port = where.split(":")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen()
        held[1].post("still", "here")
        assert held[2].wait(lambda: bool(held[2].read("still")), TIMEOUT_SECONDS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Returns the clock of all countdowns and of the waits for answers."""
    clock = Clock()
    monkeypatch.setattr(rendezvous, "time", clock)
    return clock


def test_the_missing_are_named_on_all_that_have_come(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    # A step of the wait takes this time really.
    monkeypatch.setattr(joining, "SECONDS_BETWEEN_LINES", 0.05)

    def log(line: str) -> None:
        # Rank 2 has come: the time is over for rank 0, and not yet for the wait of rank 2 for an answer.
        clock.seconds = 10000.5 if line.endswith("for ranks 1, 3.") else clock.seconds

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(joined, [RankInfo(0, 4), RankInfo(2, 4)], address(), 10000.0, log=log)
        while not meeting.done():
            clock.sleep(0.05)
            time.sleep(0.01)
        errors = meeting.result()
    assert len(set(errors)) == 1
    assert str(errors[0]).startswith("Ranks 1, 3 of 4 did not join within 10000 s")


def test_a_missing_rank_0_is_named() -> None:
    [error] = joined([RankInfo(1, 4)], address(), 0.2)
    assert "Rank 1 did not reach rank 0 within 0.2 s: no answer at 127.0.0.1" in str(error)


def test_who_is_waited_for_is_said_while_one_waits(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(joining, "time", clock)
    monkeypatch.setattr(joining, "RETRY_SECONDS", 5.0)
    monkeypatch.setattr(rendezvous.RendezvousServer, "look", lambda server, seconds: clock.sleep(seconds))
    lines: list[str] = []
    with pytest.raises(JoinError):
        join_job(RankInfo(0, 3), address(), "", 25.0, log=lines.append)
    assert lines == [f"rank 0 has waited {seconds} of 25 s for ranks 1, 2." for seconds in (10, 20)]
    lines.clear()
    with pytest.raises(JoinError):
        join_job(RankInfo(2, 3), "no-such-host.invalid:20000", "", 12.0, log=lines.append)
    [line] = lines
    assert line.startswith("rank 2 has waited 10 of 12 s for rank 0: no answer at no-such-host.invalid:20000")


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([RankInfo(0, 3), RankInfo(1, 3, "a"), RankInfo(1, 3, "b")], "Two processes are rank 1 of 3: "),
        ([RankInfo(0, 2), RankInfo(1, 3, "rank 1 on c")], "Rank 1 of 3 (rank 1 on c) has connected to rank 0 of 2."),
    ],
)
def test_ranks_that_do_not_fit_are_refused_on_all(infos: list[RankInfo], message: str) -> None:
    for error in joined(infos, address()):
        assert message in str(error)


def test_a_problem_of_one_is_an_error_of_all() -> None:
    errors = joined([RankInfo(rank, 3) for rank in range(3)], address(), problems={1: "Rank 1 has no disk."})
    assert errors == ["Rank 1 has no disk."] * 3


def test_who_has_left_may_come_again() -> None:
    where, results = address(), list[KeyValueStore | str]()
    first = threading.Thread(target=lambda: results.extend(joined([RankInfo(0, 4), RankInfo(1, 4)], where)))
    first.start()
    connection = connected(where)
    connection.sendall(greeting(rank=2, world_size=4))
    connection.close()
    results += joined([RankInfo(2, 4), RankInfo(3, 4)], where)
    first.join(TIMEOUT_SECONDS)
    assert all(isinstance(each, KeyValueStore) for each in results), results


def test_strangers_are_dropped() -> None:
    where, results = address(), list[KeyValueStore | str]()
    first = threading.Thread(target=lambda: results.extend(joined([RankInfo(0, 2)], where)))
    first.start()
    for bytes_sent in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000 + b"\n", b"[" * 100_000 + b"\n", greeting(rank="1")):
        with connected(where) as stranger:
            stranger.sendall(bytes_sent)
            assert stranger.recv(100) == b""
    results += joined([RankInfo(1, 2)], where)
    first.join(TIMEOUT_SECONDS)
    assert all(isinstance(each, KeyValueStore) for each in results), results


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(JoinError, match=rf"Rank 0 cannot listen at 127.0.0.1:{port}: .*in use"):
            join_job(RankInfo(0, 2), f"127.0.0.1:{port}", "", TIMEOUT_SECONDS)


def connected(where: str) -> socket.socket:
    host, port = where.split(":")
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.02)


def greeting(**fields: object) -> bytes:
    return json.dumps({"protocol": "keras-strategies 2", "text": "", **fields}).encode() + b"\n"
