"""Bytes that operations send, against the closed formulas of rings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategies.planning.dry_run.operations import Operation, OperationKind


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_bytes_of_a_ring(number: int) -> None:
    sums = Operation(OperationKind.ALL_REDUCE, "x", "data", num_bytes=24.0)
    part = 24 * (number - 1) / number
    assert sums.bytes_sent(number) == 2 * part
    assert replace(sums, kind=OperationKind.ALL_GATHER).bytes_sent(number) == part
    assert replace(sums, kind=OperationKind.REDUCE_SCATTER).bytes_sent(number) == part


def test_a_message_is_sent_by_its_sender() -> None:
    sent = Operation(OperationKind.SEND, "x", "pipe", (0, 1), 24.0)
    received = replace(sent, kind=OperationKind.RECEIVE)
    assert (sent.bytes_sent(2), received.bytes_sent(2)) == (24, 0)
    assert sent.form == received.form
    assert str(received) == "receive of x (24 bytes along 'pipe', from position 0 to 1)"


def test_a_computation_sends_nothing() -> None:
    computation = Operation(OperationKind.COMPUTE, "0F0", work=3.0)
    assert computation.bytes_sent(1) == 0
    assert str(computation) == "compute 0F0"
