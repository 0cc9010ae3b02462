"""Channels over a pair of sockets: messages, and what is none, and the end of a link."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from strategies.control_plane.channel import MAX_MESSAGE_BYTES, Channel, LinkLostError, connect, encoded
from tests.processes import free_ports

PROTOCOL = "test 1"


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """Yields a channel, and the socket at its other end."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(60.0)
    with ours, theirs:
        yield Channel(ours, PROTOCOL), theirs


def test_messages_are_found_however_the_bytes_arrive(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    messages: list[dict[str, object]] = [{"a": "line\nfeed"}, {}, {"b": [1, None]}]
    text = b"".join(encoded(PROTOCOL, message) for message in messages)
    for cut in range(len(text) + 1):
        received = []
        for piece in (text[:cut], text[cut:]):
            theirs.sendall(piece)
            while (message := channel.receive()) is not None:
                received.append(message)
        assert received == [{"protocol": PROTOCOL, **message} for message in messages]


def test_messages_before_the_end_are_not_lost(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.sendall(2 * encoded(PROTOCOL, {}) + b"{")
    theirs.close()
    # Nobody reads this any more: an error of sending must not hide what has arrived.
    channel.send({})
    assert channel.receive() == channel.receive() == {"protocol": PROTOCOL}
    with pytest.raises(LinkLostError):
        channel.receive()


@pytest.mark.parametrize("line", [b"", b"\xff", b"[]", b"{}", b'{"protocol": "test 2"}', b"[" * 100_000])
def test_what_is_no_message_ends_the_link(line: bytes, ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    theirs.sendall(line + b"\n")
    with pytest.raises(LinkLostError, match="not one of test 1"):
        channel.wait(60.0)


def test_a_message_that_is_too_long_ends_the_link(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    assert channel.max_message_bytes == MAX_MESSAGE_BYTES
    channel.max_message_bytes = 100
    theirs.sendall(b"x" * 100)
    assert channel.receive() is None
    theirs.sendall(b"x")
    with pytest.raises(LinkLostError, match="too long"):
        channel.wait(60.0)


def test_a_side_that_does_not_read_holds_nobody_up(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    # Without a limit of time these would never return.
    channel.send({"text": "x" * (1 << 23)})
    assert channel.wait(0.1) is None
    assert channel.num_unsent_bytes > 0
    channel.finish(0.2)


def test_everything_is_sent_before_the_link_is_closed(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends
    # Unread data would reset the connection.
    theirs.sendall(encoded(PROTOCOL, {}))
    channel.send({"text": "last"})
    theirs.shutdown(socket.SHUT_WR)
    channel.finish(60.0)
    assert json.loads(theirs.makefile().read()) == {"protocol": PROTOCOL, "text": "last"}


def test_a_port_without_a_listener_refuses() -> None:
    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        connect("127.0.0.1", free_ports(1)[0], PROTOCOL, 5.0)
