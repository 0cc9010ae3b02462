"""Axes that cross processes and hosts, and the messages about them."""

from collections.abc import Mapping, Sequence

import pytest

from strategies.topology.crossings import Crossing, crossings, description, warning
from strategies.topology.placement import mesh_over_processes


@pytest.mark.parametrize(
    ("num_local", "axes", "nodes", "expected"),
    [
        (1, {"data": 2, "pipe": 2}, (0, 0, 1, 1), [Crossing("data", 2, 2), Crossing("pipe", 2, 1)]),
        (1, {"pipe": 4}, (0, 0, 1, 1), [Crossing("pipe", 4, 2)]),
        (2, {"pipe": 4, "tensor": 2}, (0, 0, 1, 1), [Crossing("pipe", 4, 2)]),
        (2, {"tensor": 8}, (0, 0, 0, 0), [Crossing("tensor", 4, 1)]),
        (2, {"data": 4, "tensor": 2}, (0, 1, 2, 3), [Crossing("data", 4, 4)]),
    ],
)
def test_axes(num_local: int, axes: Mapping[str, int], nodes: Sequence[int], expected: list[Crossing]) -> None:
    mesh = mesh_over_processes(4, axes, [f"CPU:{i}" for i in range(num_local)])
    assert list(crossings(mesh, nodes)) == expected


def test_what_is_said() -> None:
    mesh = mesh_over_processes(4, {"pipe": 2, "tensor": 2}, ["GPU:0"])
    text = description(mesh, (0, 0, 1, 1))
    assert text.startswith(
        "Mesh pipe=2, tensor=2 over 4 processes of 1 device on 2 hosts. 'pipe' crosses 2 processes and"
    )
    assert "2 messages per micro-batch" in text
    assert "'tensor' crosses 2 processes: 4 all-reduces" in text
    assert warning(mesh, (0, 0, 1, 1)) is None


def test_shards_on_several_hosts_are_warned_of() -> None:
    mesh = mesh_over_processes(4, {"tensor": 4}, ["GPU:0"])
    assert "divides the 2 devices of a host" in (warning(mesh, (0, 0, 1, 1)) or "")
