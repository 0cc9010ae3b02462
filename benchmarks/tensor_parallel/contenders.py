"""The contenders and their comparisons. Pure data: libraries are imported in the contenders' own processes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness import clusters
from harness.clusters import Environments
from harness.ratios import Comparison
from harness.workers import Contender, Report

from tensor_parallel.workload import Workload

# Release criterion: the speedup of two shards over one device.
TARGET_OF_SPEEDUP = {"mlp": 1.85}
TARGET_OF_PEERS = 1.0


@dataclass(frozen=True)
class Kind:
    """One way to train.

    Attributes:
        row: row in the tables; `{}` is the number of shards.
        program: the module of this package that runs it.
        is_split: whether it uses several shards.
        processes: whether shards are processes, and not devices of one process.
        requires: the distribution to be installed besides ours.
        backend: Keras' backend.
    """

    row: str
    program: str
    is_split: bool = False
    processes: bool = False
    requires: str = "keras"
    backend: str = "tensorflow"


KINDS: Mapping[str, Kind] = {
    "plain": Kind("plain Keras, 1 device", "keras_training"),
    "ours": Kind("keras_ext.parallelize, {} shards", "keras_training", True),
    "plain_again": Kind("plain Keras, 1 device, a second process", "keras_training"),
    "torch": Kind("torch, 1 device", "torch_training", requires="torch"),
    "torch_split": Kind("torch.distributed.tensor.parallel, gloo, {} shards", "torch_training", True, True, "torch"),
    "jax": Kind("Keras on JAX, 1 device", "keras_training", requires="jax", backend="jax"),
    "jax_split": Kind("keras.distribution.ModelParallel, {} shards", "keras_training", True, False, "jax", "jax"),
}
# The baseline of each split contender.
ALONE = {"ours": "plain", "torch_split": "torch", "jax_split": "jax"}


def row_of(name: str, num_shards: int) -> str:
    """Returns the row of a contender."""
    return KINDS[name].row.format(num_shards)


def contenders(names: Sequence[str], workload: Workload, num_shards: int) -> list[Contender]:
    """Returns the contenders of those names, in that order: one core and one thread for each shard."""
    cores = [core for [core] in clusters.one_core_each(num_shards)]
    found = []
    for name in names:
        kind = KINDS[name]
        run = functools.partial(_run, name, workload, num_shards)
        if kind.processes:
            found.append(
                Contender(
                    row_of(name, num_shards),
                    run,
                    clusters.torch_environments(num_shards),
                    clusters.one_core_each(num_shards),
                )
            )
        else:
            count = num_shards if kind.is_split else 1
            own = (tuple(cores[:count]),)
            found.append(Contender(row_of(name, num_shards), run, _environment(kind, count), own))
    return found


def comparisons(model: str, names: Collection[str], num_shards: int) -> list[Comparison]:
    """Returns the comparisons between the contenders in `names`."""
    found = [
        Comparison(
            f"{name} / {alone}: speedup",
            row_of(name, num_shards),
            row_of(alone, num_shards),
            TARGET_OF_SPEEDUP.get(model) if name == "ours" and num_shards == 2 else None,
        )
        for name, alone in ALONE.items()
        if {name, alone} <= set(names)
    ]
    found += [
        Comparison(f"speedup of ours / of {peer}", speedup("ours"), speedup(peer), TARGET_OF_PEERS)
        for peer in ("torch_split", "jax_split")
        if {"ours", "plain", peer, ALONE[peer]} <= set(names)
    ]
    if {"plain", "plain_again"} <= set(names):
        found.append(
            Comparison("plain_again / plain", row_of("plain_again", num_shards), row_of("plain", num_shards), None)
        )
    return found


def speedup(name: str) -> str:
    """Returns the row of a split contender's speedup over its own library on one device."""
    return f"{name}, speedup"


def speedups(measured: Mapping[str, Sequence[float]], num_shards: int) -> dict[str, list[float]]:
    """Returns the speedup of each split contender over its own library on one device, round by round."""
    result = {}
    for name, alone in ALONE.items():
        row, base = row_of(name, num_shards), row_of(alone, num_shards)
        if row in measured and base in measured:
            result[speedup(name)] = [one / other for one, other in zip(measured[row], measured[base], strict=True)]
    return result


def _environment(kind: Kind, num_devices: int) -> Environments:
    variables = {
        **clusters.one_thread_each(),
        # A thread for each device, and one that only dispatches.
        "TF_NUM_INTEROP_THREADS": str(max(2, num_devices)),
        "KERAS_BACKEND": kind.backend,
    }
    if kind.backend == "jax":
        variables["JAX_PLATFORMS"] = "cpu"
        variables["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"
    return (variables,)


def _run(name: str, workload: Workload, num_shards: int, report: Report) -> None:
    kind = KINDS[name]
    count = num_shards if kind.is_split else 1
    if kind.program == "torch_training":
        from tensor_parallel import torch_training

        torch_training.run(workload, count, report)
    else:
        from tensor_parallel import keras_training

        keras_training.run(workload, count, kind.backend, report)
