"""The wait of rank 0 for one other; test_joining.py and test_launch_rendezvous.py have the rendezvous of whole jobs."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strategies.control_plane import rendezvous
from strategies.control_plane.channel import Channel, LinkLostError, connect
from strategies.control_plane.rendezvous import Countdown, RendezvousServer, ask
from tests.clock import Clock

PROTOCOL = "test 1"


@pytest.fixture
def server() -> RendezvousServer[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    return RendezvousServer(listener, PROTOCOL, "own", 2, welcome, LookupError)


@pytest.fixture
def guest(server: RendezvousServer[str]) -> Iterator[Channel]:
    """Yields the link of a guest that has not announced itself."""
    channel = connect("127.0.0.1", server._listener.getsockname()[1], PROTOCOL, 10.0)
    server.look(10.0)
    yield channel
    channel.close()


def welcome(message: dict[str, Any], joined: Mapping[int, str]) -> tuple[int, str] | None:
    if message["name"] == "wrong":
        raise LookupError("a wrong name")
    return None if message["name"] == "" else (1, message["name"])


def test_an_announcement_takes_a_rank_and_the_end_frees_it(server: RendezvousServer[str], guest: Channel) -> None:
    with server:
        assert server.missing == [1]
        guest.send({"name": "first"})
        server.look(10.0)
        assert (server.missing, server.joined) == ([], {0: "own", 1: "first"})
        guest.close()
        server.look(10.0)
        assert (server.missing, server.links) == ([1], {})


def test_the_links_stay_after_the_wait(server: RendezvousServer[str], guest: Channel) -> None:
    with server:
        guest.send({"name": "first"})
        server.look(10.0)
        server.broadcast({"waiting": "for nobody"})
    server.broadcast({"complete": True})
    said: list[str] = []
    assert "complete" in ask(guest, {}, 10.0, LookupError, said.append)
    assert said == ["for nobody"]
    server.links[1].close()


def test_who_is_no_peer_is_dropped(server: RendezvousServer[str], guest: Channel) -> None:
    with server:
        guest.send({"name": ""})
        server.look(10.0)
        with pytest.raises(LinkLostError):
            guest.wait(60.0)


def test_a_refusal_is_told_to_the_one_that_caused_it(server: RendezvousServer[str], guest: Channel) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, guest, {"name": "wrong"}, 10.0, KeyError)
        with pytest.raises(LookupError, match="a wrong name"), server:
            server.look(10.0)
        assert isinstance(answer.exception(timeout=60.0), KeyError)


def test_another_error_is_told_to_nobody(server: RendezvousServer[str], guest: Channel) -> None:
    with pytest.raises(KeyboardInterrupt), server:
        raise KeyboardInterrupt
    with pytest.raises(LinkLostError):
        guest.wait(60.0)


def test_silence_is_an_error(server: RendezvousServer[str], guest: Channel) -> None:
    with server, pytest.raises(LinkLostError, match="silent"):
        ask(guest, {"name": "first"}, 0.1, LookupError)


def test_the_times_of_a_countdown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(rendezvous, "time", clock)
    endless, countdown = Countdown(None, 10.0), Countdown(0.3, 0.1)
    assert endless.left == math.inf
    assert 0 < endless.until_next <= 10.0
    assert not countdown.is_notice_due()
    assert 0 < countdown.until_next <= 0.1
    clock.sleep(0.15)
    assert (countdown.is_notice_due(), countdown.is_notice_due()) == (True, False)
    clock.sleep(0.2)
    assert countdown.left < 0 == countdown.until_next
