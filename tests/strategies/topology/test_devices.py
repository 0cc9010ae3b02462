"""A process' share of the node's GPUs."""

from __future__ import annotations

import pytest

from strategies.topology.devices import pin_gpus
from strategies.topology.gpus import SHARING_VARIABLE
from tests.strategies.topology.test_gpus import Gpus


@pytest.mark.parametrize(
    ("number", "local_rank", "local_size", "own"),
    [
        (4, 1, 4, ["GPU:1"]),
        (4, 1, 2, ["GPU:2", "GPU:3"]),
        (5, 1, 2, ["GPU:2", "GPU:3"]),
        # A process alone on its node, or GPUs assigned by the launcher.
        (2, 0, 1, ["GPU:0", "GPU:1"]),
        (1, 1, 2, ["GPU:0"]),
    ],
)
def test_each_process_takes_its_share(
    number: int, local_rank: int, local_size: int, own: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = Gpus(monkeypatch, number)
    pin_gpus(local_rank, local_size)
    assert gpus.names == own


def test_what_the_program_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(monkeypatch, 4)
    gpus.set(gpus.all[3:], "GPU")
    gpus.has_started = True
    pin_gpus(1, 4)
    assert gpus.names == ["GPU:3"]


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(monkeypatch, 2)
    monkeypatch.delenv(SHARING_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=f"3 processes share this node, which has 2 GPUs.*{SHARING_VARIABLE}=1"):
        pin_gpus(2, 3)
    monkeypatch.setenv(SHARING_VARIABLE, "1")
    pin_gpus(2, 3)
    assert gpus.names == ["GPU:0"]


def test_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, 4, has_started=True)
    with pytest.raises(ValueError, match=r"has started already, with all 4 GPUs.*local rank 2.* GPU:2 .*CUDA_VISIBLE"):
        pin_gpus(2, 4)
