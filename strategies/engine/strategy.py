"""The properties that all strategies have: their mesh, and this process' place in the job."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import tensorflow as tf

from strategies.topology import crossings
from strategies.topology.cluster import Cluster
from strategies.topology.mesh import DeviceMesh

_logger = logging.getLogger(__name__)


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
        """The devices of all processes by their coordinates."""
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
        """This process' number among those of its node, from 0."""
        return self._cluster.local_rank

    @property
    def is_chief(self) -> bool:
        """True on rank 0, which writes files and prints."""
        return self.rank == 0

    def _say_what_crosses(self, nodes: Sequence[int]) -> None:
        """Says on rank 0 which axes of the mesh cross processes and hosts; `nodes` has the host of each process."""
        if self.is_chief and nodes:
            _logger.info(crossings.description(self._mesh, nodes))
            warning = crossings.warning(self._mesh, nodes)
            if warning is not None:
                _logger.warning(warning)
