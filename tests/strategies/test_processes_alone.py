"""Multi-process strategies in a process of their own: alone, in a wrong environment, too late."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from typing import Any

import pytest
import tensorflow as tf

import strategies
from tests.logs import own_records
from tests.processes import ROOT, python

WORLD_OF_TWO = {"cluster": {"worker": ["127.0.0.1:20001", "127.0.0.1:20002"]}, "task": {"type": "worker", "index": 0}}

HOROVODRUN = {
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
}


def test_alone_it_is_one_process_with_all_its_devices() -> None:
    strategy = strategies.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 8
    assert strategy.mesh.axes == {"data": 8}
    assert strategy.extended.should_checkpoint


def test_joining_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(WORLD_OF_TWO))
    with pytest.raises(ValueError, match="before anything else that runs TensorFlow"):
        strategies.MultiWorkerMirroredStrategy()


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        (HOROVODRUN, "python -m strategies.launch"),
    ],
)
def test_an_environment_that_will_not_do(
    variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=reason):
        strategies.MultiWorkerMirroredStrategy()


def test_two_limits_of_time_are_refused() -> None:
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20)
    with pytest.raises(ValueError, match=r"give one of them. Received: timeout_seconds=30, .*timeout_seconds=20"):
        strategies.MultiWorkerMirroredStrategy(communication_options=options, timeout_seconds=30)
    strategies.MultiWorkerMirroredStrategy(communication_options=options, timeout_seconds=20)


@pytest.mark.parametrize("made", [strategies.MirroredStrategy, strategies.CentralStorageStrategy])
def test_a_strategy_of_one_process_says_that_it_joins_no_others(
    made: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        monkeypatch.setenv("TF_CONFIG", json.dumps({**WORLD_OF_TWO, "task": {"type": "worker", "index": 1}}))
        made()
        assert not own_records(caplog)
        monkeypatch.setenv("TF_CONFIG", json.dumps(WORLD_OF_TWO))
        made()
    [record] = own_records(caplog)
    assert f"TF_CONFIG has 2 processes, but {made.__name__} uses the devices of one" in record.getMessage()


def test_alone_its_replicas_may_span_devices() -> None:
    for made in (strategies.MultiWorkerMirroredStrategy, strategies.HorovodStrategy):
        strategy = made(mesh={"data": -1, "pipe": 2, "tensor": 2})
        assert strategy.num_replicas_in_sync == 2
        assert [group.devices[1][-5:] for group in strategy.extended.engine.layout.groups] == [
            f"CPU:{i}" for i in range(4, 8)
        ]


def test_horovod_alone_is_one_process() -> None:
    assert strategies.HorovodStrategy(mesh={"data": -1}).num_replicas_in_sync == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"compression": "zip"},
        {"reduction": "max"},
        {"mesh": {"data": 3}},
        {"mesh": {"data": 4, "tensor": 2}, "reduction": "adasum"},
    ],
)
def test_horovod_options_that_will_not_do(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Received"):
        strategies.HorovodStrategy(**arguments)


def test_without_horovod_the_rest_works_and_the_strategy_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['horovod'] = None\n"
        "import strategies; strategies.MirroredStrategy()\n"
        "try: strategies.HorovodStrategy()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        python("-c", code),
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert "python -m strategies.install_horovod" in done.stdout, done.stderr
