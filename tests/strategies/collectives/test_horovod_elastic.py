"""The parts of elastic Horovod that need no other process; whole jobs are in tests/strategies/test_elastic.py."""

from __future__ import annotations

import logging
from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from strategies.collectives.horovod import elastic, runtime
from strategies.control_plane import DistributedError


def raising(error: Exception) -> Any:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnknownError(None, None, "Horovod has been shut down. This was caused by an exception"),
        tf.errors.UnknownError(None, None, "{{node HorovodGroupedAllreduce}} Connection reset by peer"),
        DistributedError("Rank 1 was killed, or its host is gone."),
    ],
)
def test_errors_after_which_it_goes_on(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(HorovodInternalError):
        elastic._raise_on_lost_peer(raising(error))
    assert "Another process was lost" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.InvalidArgumentError(None, None, "Matrix size-incompatible: In[0]: [2,3], In[1]: [4,5]"),
        ValueError("Horovod is not to blame"),
    ],
)
def test_errors_of_the_program_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)):
        elastic._raise_on_lost_peer(raising(error))


def test_a_watchdog_of_an_earlier_session_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(hvd, "shutdown", lambda: ended.append("shutdown"))
    session = runtime._Session()
    before = session.ender()
    session.end()
    before("Rank 0 of 2 has waited 600 s")
    assert not ended
    session.ender()("Rank 0 of 2 has waited 600 s")
    assert ended == ["shutdown"]


def test_the_newest_commit_goes_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # This process is rank 0 of three and one commit late; rank 1 has just joined, and rank 2 has the newest commit.
    asked: list[tuple[Any, int]] = []

    def broadcast(value: Any, root_rank: int) -> str:
        asked.append((value, root_rank))
        return "newest"

    memory = elastic.ElasticMemory()
    memory.value, memory.num_commits = "older", 4
    monkeypatch.setattr(hvd, "allgather_object", lambda number: [number, 0, 5])
    monkeypatch.setattr(hvd, "broadcast_object", broadcast)
    memory.sync()
    assert asked == [("older", 2)]
    assert (memory.value, memory.num_commits) == ("newest", 5)
    monkeypatch.setattr(hvd, "allgather_object", lambda number: [number] * 3)
    memory.sync()
    assert len(asked) == 1
