"""The properties that all strategies have: mesh, this process' rank in the job, and what their `check` finds."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence
from typing import Literal

import tensorflow as tf

from strategies.topology import crossings
from strategies.topology.cluster import Cluster
from strategies.topology.mesh import DeviceMesh
from strategies.topology.sharding import ShardingGroups, sharding_groups

#: The state that is sharded over the data axis; None if nothing is.
Sharded = Literal["optimizer", "gradients", "weights"] | None

_logger = logging.getLogger(__name__)

# Process-wide, since TensorFlow's collective keys are. The stock strategies' keys begin at 1.
_KEYS_PER_STRATEGY = 1000
_strategies_made = itertools.count(1)


def next_collective_key_base() -> int:
    """Returns the first collective key of a new strategy: a process' collectives are matched by their keys."""
    return _KEYS_PER_STRATEGY * next(_strategies_made)


def warn_of_other_processes(strategy: tf.distribute.Strategy) -> None:
    """Logs on rank 0 of a job of several processes that a strategy of one process does not join them."""
    try:
        cluster = Cluster.from_environment()
    except ValueError:
        return  # Only the strategies that join processes need variables that are complete.
    if cluster.world_size > 1 and cluster.rank == 0:
        _logger.warning(
            "%s has %d processes, but %s uses the devices of one: each process trains a model of its own. To train "
            "one model, use MultiWorkerMirroredStrategy or HorovodStrategy.",
            cluster.source,
            cluster.world_size,
            type(strategy).__name__,
        )


def sharding_of(
    shard: Sharded, shard_size: int | None, mesh: DeviceMesh, nodes: Sequence[int] = ()
) -> ShardingGroups | None:
    """Returns the groups of replicas over which the optimizer is sharded; None if it is not.

    Args:
        shard: the user's argument.
        shard_size: the user's argument.
        mesh: the mesh of all processes' devices. The optimizer is always sharded along "expert", whatever `shard` is.
        nodes: the host of each process, by rank; empty if unknown.

    Raises:
        ValueError: if `shard` is an unknown name, or `shard_size` does not fit the mesh.
    """
    if shard not in (None, "optimizer", "gradients", "weights"):
        raise ValueError(f"shard must be 'optimizer', 'gradients', 'weights' or None. Received: shard={shard!r}.")
    num_experts = mesh.axis_size("expert")
    mesh = mesh.with_experts_as_data()
    if num_experts > 1:
        if shard_size not in (None, num_experts):
            raise ValueError(
                "On a mesh with the axis 'expert', its replicas are those that share the optimizer, too: leave "
                f"shard_size out. Received: shard_size={shard_size!r}, and 'expert' of size {num_experts}."
            )
        shard_size = num_experts
    if shard is None and num_experts == 1:
        if shard_size is not None:
            raise ValueError(
                "shard_size is the number of replicas among which something is sharded. Set shard, as in "
                f"shard='optimizer', or leave it out. Received: shard_size={shard_size!r}, shard=None."
            )
        return None
    num_replicas = mesh.axis_size("data")
    if num_replicas == 1 and shard_size is None:
        return None
    # For a replica that spans processes, the host of its first process.
    firsts = nodes[:: max(mesh.num_processes // num_replicas, 1)]
    groups = sharding_groups(shard_size, num_replicas, max(num_replicas // mesh.num_processes, 1), firsts)
    return dataclasses.replace(groups, shards_weights=shard == "weights", shards_experts=num_experts > 1)


def num_sharing(sharding: ShardingGroups | None) -> int:
    """Returns the number of processes along "data" over which the optimizer is sharded."""
    return 1 if sharding is None else sharding.num_processes


@dataclasses.dataclass(frozen=True)
class Finding:
    """A layer whose numbers under a strategy differ from those of one device.

    Attributes:
        layer: its path, or its name if it has none.
        difference: one sentence: how it differs from one device.
        fix: one sentence: how to make it equal.

    Example:

        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activity_regularizer="l2")])
        assert strategy.check(model) == ()
    """

    layer: str
    difference: str
    fix: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.difference} {self.fix}"


class MeshStrategy(tf.distribute.Strategy):
    """A strategy over a mesh of devices, in one process or in several.

    Example, in a program that all processes run:

        if strategy.is_chief:
            print(f"{strategy.world_size} processes, {strategy.num_replicas_in_sync} replicas")
    """

    _mesh: DeviceMesh
    _cluster = Cluster()

    @property
    def mesh(self) -> DeviceMesh:
        """The devices of all processes, by their coordinates."""
        return self._mesh

    @property
    def rank(self) -> int:
        """This process' number in the job, from 0."""
        return self._cluster.rank

    @property
    def world_size(self) -> int:
        """The number of processes in the job."""
        return self._cluster.world_size

    @property
    def local_rank(self) -> int:
        """This process' number among the processes of its node, from 0."""
        return self._cluster.local_rank

    @property
    def is_chief(self) -> bool:
        """True on rank 0, which writes files and prints."""
        return self.rank == 0

    def _log_crossings(self, nodes: Sequence[int]) -> None:
        """Logs on rank 0 which axes of the mesh cross processes and hosts; `nodes` has the host of each process."""
        if self.is_chief and nodes:
            _logger.info(crossings.description(self._mesh, nodes))
            warning = crossings.warning(self._mesh, nodes)
            if warning is not None:
                _logger.warning(warning)
