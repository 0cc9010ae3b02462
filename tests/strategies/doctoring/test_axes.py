"""The doctor's rates by mesh axis: the messages along each axis, and the report of a wrong value."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from strategies.collectives.process_groups import ProcessGroups
from strategies.doctoring import axes
from tests.strategies.doctoring.test_rates import Group


class Stages:
    """Two stages as the first one sees them; messages may come back changed."""

    def __init__(self, change: float = 0.0) -> None:
        self.change = change
        self.sent: list[tuple[str, Any]] = []

    def permute(self, values: Sequence[tf.Tensor], axis: str, pairs: Any, *, differentiable: bool) -> list[tf.Tensor]:
        self.sent.append((axis, pairs))
        return [value + self.change for value in values]


def groups(model: dict[str, Any], collectives: Any = None, data: Sequence[Any] = ()) -> ProcessGroups:
    found: Any = SimpleNamespace(model=model, collectives=collectives, data_of_first=data[0] if data else None)
    return found


def test_shards_and_replicas_sum() -> None:
    sums, shards = Group(), Group()
    found = axes.measure_axes(groups({"tensor": shards}, data=[sums]), 0.1)
    assert list(found) == ["data", "tensor"]
    for along in found.values():
        assert (along["by"], along["processes"], list(along["GB/s"])) == ("all-reduce", 2, ["0.1 MB"])
        assert along["latency in microseconds"] > 0
    assert sums.summed == shards.summed == [("float32", 1), ("float32", 25_000)]


def test_stages_send_there_and_back() -> None:
    stages = Stages()
    found = axes.measure_axes(groups({"pipe": SimpleNamespace(rank=0, num_processes=2)}, stages), 0.1)
    assert list(found) == ["pipe"]
    assert (found["pipe"]["by"], list(found["pipe"]["GB/s"])) == ("send/recv", ["0.1 MB"])
    # Traced once for each size.
    assert stages.sent == [("pipe", [(0, 1)]), ("pipe", [(1, 0)])] * 2


def test_a_wrong_message_is_named() -> None:
    with pytest.raises(ValueError, match="stage 0 has sent 1 along 'pipe' and received 2 back"):
        axes.measure_axes(groups({"pipe": SimpleNamespace(rank=0, num_processes=2)}, Stages(0.5)), 0.1)


def test_a_mesh_within_processes_crosses_none() -> None:
    assert axes.measure_axes(ProcessGroups(), 0.1) == {"crossing processes": "none"}


@pytest.mark.parametrize(
    ("mesh", "num_processes", "num_devices"),
    [
        ({"pipe": 2}, 2, 1),
        ({"data": 1, "pipe": 2, "tensor": 2}, 2, 2),
        ({"data": -1, "tensor": 2}, 4, 1),
        ({"data": -1, "pipe": 2, "tensor": 2}, 2, 2),
    ],
)
def test_a_process_has_the_devices_that_the_mesh_needs(
    mesh: dict[str, int], num_processes: int, num_devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["cpu"] if kind == "CPU" else [])
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda device, own: made.append(len(own)))
    axes.make_devices(mesh, num_processes)
    assert made == [num_devices]
