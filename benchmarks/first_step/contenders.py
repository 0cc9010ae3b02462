"""The contenders and their comparisons. Pure data: TensorFlow is imported in the contenders' own processes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from harness.ratios import Comparison
from harness.workers import Contender, Report

MODELS = ("gpt", "resnet50")
PLAIN = "plain Keras, 1 device"
#: The number of devices with targets.
_JUDGED = 8
#: Meshes of one replica; each is measured with the GPT.
_MESHES: Mapping[str, Mapping[str, int]] = {"pipe=4": {"pipe": 4}, "tensor=4": {"tensor": 4}}


def ours(num_devices: int) -> str:
    """Returns the row of our strategy."""
    return f"strategies.MirroredStrategy, {_counted(num_devices)}"


def ours_on_mesh(mesh: str) -> str:
    """Returns the row of our strategy with a replica over several devices."""
    return f"strategies.MirroredStrategy, {mesh}"


def stock(num_devices: int) -> str:
    """Returns the row of TensorFlow's strategy."""
    return f"tf.distribute.MirroredStrategy, {num_devices} devices"


def graph(num_devices: int) -> str:
    """Returns the row of the seconds that TensorFlow alone takes for the graph of our strategy."""
    return f"the traced graph of {_counted(num_devices)}, run once and not optimized"


def contenders(model: str, num_blocks: int, device_counts: Sequence[int], *, of_memory: bool) -> list[Contender]:
    """Returns plain Keras, and ours and TensorFlow's on each number of devices."""

    def contender(name: str, strategy: str, num_devices: int, mesh: str = "") -> Contender:
        axes = _MESHES.get(mesh)
        return Contender(name, functools.partial(_run, strategy, model, num_blocks, num_devices, axes, of_memory))

    found = [contender(PLAIN, "plain", 1), contender(ours(1), "ours", 1)]
    for count in device_counts:
        found += [contender(ours(count), "ours", count), contender(stock(count), "stock", count)]
    if _JUDGED in device_counts and not of_memory:
        found += [contender(graph(count), "graph", count) for count in (1, _JUDGED)]
    found += [contender(ours_on_mesh(mesh), "ours", 4, mesh) for mesh in _meshes(model)]
    return found


def comparisons(model: str, device_counts: Sequence[int], *, of_memory: bool) -> list[Comparison]:
    """Returns the comparisons for the given numbers of devices; 8 devices have targets."""
    few, many = min(device_counts), max(device_counts)
    found = [Comparison("ours on 1 device / plain Keras", ours(1), PLAIN)]
    if not of_memory:
        for count in device_counts:
            target = 2.0 if count == _JUDGED else None
            found.append(Comparison(f"ours, {count} devices / 1 device", ours(count), ours(1), target, at_most=True))
        if _JUDGED in device_counts:
            # With the Python of one device, this is a bound from below for the comparison above.
            for count in (1, _JUDGED):
                name = f"the graph of {_counted(count)} alone / ours on 1 device"
                found.append(Comparison(name, graph(count), ours(1)))
    elif few < many:
        name = f"ours, {many} devices / {few} devices"
        found.append(Comparison(name, ours(many), ours(few), 1.5, at_most=True))
    for count in device_counts:
        target = 0.25 if count == _JUDGED and not of_memory else None
        name = f"ours / TensorFlow's, {count} devices"
        found.append(Comparison(name, ours(count), stock(count), target, at_most=True))
    found += [Comparison(f"ours, {mesh} / 1 device", ours_on_mesh(mesh), ours(1)) for mesh in _meshes(model)]
    return found


def _counted(num_devices: int) -> str:
    return f"{num_devices} device{'s' * (num_devices > 1)}"


def _meshes(model: str) -> list[str]:
    return list(_MESHES) if model == "gpt" else []


def _run(
    strategy: str,
    model: str,
    num_blocks: int,
    num_devices: int,
    axes: Mapping[str, int] | None,
    of_memory: bool,
    report: Report,
) -> None:
    from first_step import training

    training.run(strategy, model, num_blocks, num_devices, axes, of_memory, report)
