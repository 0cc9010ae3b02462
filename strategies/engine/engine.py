"""The engine of a strategy: its replicas, and the objects that synchronize and update them.

TensorFlow sees a strategy through ``StrategyExtended`` (``replicated.py``). Keras' hooks, saving and the layers see the
engine, ``strategy.extended.engine``.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any

import tensorflow as tf

from strategies.collectives.agreement import Agreement
from strategies.collectives.descriptions import carrying
from strategies.collectives.loopback import LOOPBACK
from strategies.collectives.process_group import ProcessGroup
from strategies.control_plane import Member
from strategies.engine import watching
from strategies.engine.save_counter import SaveCounter
from strategies.engine.seeds import agree_on_random_state, agree_on_seed
from strategies.replica.parts import ReplicaParts
from strategies.replica.row_exchange import RowExchange
from strategies.sharding.creation import ShardedWeights
from strategies.sharding.updates import ShardedUpdates
from strategies.steps.central import CentralStorage
from strategies.steps.device_reductions import DeviceReductions, LocalReduction
from strategies.steps.gradient_sync import Accumulation, GradientSync
from strategies.steps.layout import DataParallelGroup, ReplicaLayout
from strategies.steps.optimizer_state import OptimizerState
from strategies.steps.partial_sums import PartialSumVariable
from strategies.steps.reductions import SUM, FusedReduction, Reductions
from strategies.steps.step import Steps
from strategies.steps.updates import Updates
from strategies.steps.waiting import Waits
from strategies.topology import xla_support
from strategies.topology.devices import is_gpu
from strategies.topology.sharding import ShardingGroups


class Engine:
    """Synchronizes and updates the local replicas of one strategy.

    Args:
        strategy: the strategy to which the engine belongs.
        parts: the parts of each local replica, and the groups that join them to those of other processes.
        reduce_locally: reduces per-replica values over the devices of this process.
        member: this process in its job; None if it knows no other process.
        sharding: the groups of replicas over which updates are sharded; None if each replica updates all weights.
        parameter_device: full name of the device that alone holds and updates variables; None if each replica does.
    """

    #: Counts the saves of this process, those left to rank 0 included. Set only if there are other processes.
    save_counter: SaveCounter

    def __init__(
        self,
        strategy: Any,
        parts: ReplicaParts,
        reduce_locally: LocalReduction,
        member: Member | None = None,
        sharding: ShardingGroups | None = None,
        parameter_device: str | None = None,
    ) -> None:
        #: This process in its job: its position, and its messages with other processes.
        self.member = member or Member(0, 1)
        #: The devices over which a replica is spread.
        self.parts = parts
        devices = [parts.part_devices(part) for part in parts.owned]
        joined: Sequence[ProcessGroup] = parts.groups.data or [LOOPBACK] * len(devices)
        #: All replicas of the job, and those of this process.
        self.layout = ReplicaLayout(tuple(starmap(DataParallelGroup, zip(devices, joined, strict=True))))
        #: The seed generator of replicas' random draws without a seed; created at the first such draw.
        self.seed_generator: Any = None
        #: The variables that optimizers are creating.
        self.optimizer_state = OptimizerState()
        #: The time that replicas wait for input and for each other.
        self.waits = Waits(self.layout.num_replicas)
        #: Reduces per-replica values over the replicas.
        self.reductions = Reductions(self.layout)
        if self.layout.num_processes == 1:
            self.reductions = DeviceReductions(self.layout, reduce_locally)
        gradient_sync = GradientSync(self.layout, self.reductions, self.waits)
        #: Compares what processes have to have in common, and ends their datasets together; None without others.
        self.agreement: Agreement | None = None
        if self.num_processes > 1:
            num_together = len(parts.owners) if parts.spans_processes else 1
            self.agreement = Agreement(self.process_group, num_together)
        #: The running step.
        self.steps = Steps(strategy, self.layout, self.waits)
        self.steps.can_trace_once = not parts.spans_processes and not _exchanges_weights(sharding)
        is_split = any(size > 1 for axis, size in parts.mesh.axes.items() if axis != "pipe")
        self.steps.may_have_shards = is_split or sharding is not None
        self._updates = Updates(parts, self.layout, gradient_sync, self.steps)
        #: The groups of replicas over which updates are sharded; None if each replica updates all weights.
        self.sharding = sharding
        #: Shards updates over the replicas; None if each replica updates all weights.
        self.sharded_updates: ShardedUpdates | None = None
        #: Exchanges rows between replicas that each hold some rows of a weight; None if each holds whole weights.
        self.row_exchange: RowExchange | None = None
        #: Creates sharded weights; None if each device holds whole weights.
        self.sharded_weights: ShardedWeights | None = None
        if sharding is not None:
            self.sharded_weights = ShardedWeights(self.layout, self.steps, sharding, parts, self.optimizer_state)
            gathers = self.sharded_weights.gathers
            self.sharded_updates = ShardedUpdates(self.layout, self.reductions, self.steps, sharding, parts, gathers)
            sharding_group = parts.groups.sharding[0].inside if parts.groups.sharding else None
            self.row_exchange = RowExchange(sharding, self.layout.devices, sharding_group)
        #: Holds variables on the parameter device; None if each replica holds them.
        self.central: CentralStorage | None = None
        if parameter_device is not None and self.layout.devices != (parameter_device,):
            self.central = CentralStorage(
                parameter_device, self.layout, self.reductions, self.steps, self.optimizer_state
            )
        watching.watch(self.member, self.waits, self.layout.devices)

    def agree(self) -> None:
        """Compares the devices of all processes, and agrees on a number for the job and on seeds. All call it once.

        Raises:
            ValueError: on all processes, if their numbers of devices differ.
        """
        if self.num_processes == 1:
            return
        with carrying("numbers of devices"):
            job = _check_alike(self.process_group, self.layout.num_local, len(self.parts.owned))
        self.save_counter = SaveCounter(self.process_group.rank, job, self.member.store)
        agree_on_seed(self.process_group)
        if self.parts.spans_processes:
            agree_on_random_state(self.process_group)

    @property
    def process_group(self) -> ProcessGroup:
        """The group of all processes of the job."""
        return self.parts.groups.job

    @property
    def num_processes(self) -> int:
        """The number of processes of the job."""
        return self.process_group.num_processes

    @property
    def spanning_parts(self) -> ReplicaParts | None:
        """The parts of a replica if they belong to several processes, else None."""
        return self.parts if self.parts.spans_processes else None

    @property
    def owns_only_part(self) -> bool:
        """True if other processes hold variables of a model or its optimizer that this process does not hold."""
        sharded = self.sharded_updates
        return self.parts.spans_processes or (sharded is not None and sharded.spans_processes)

    @property
    def should_checkpoint(self) -> bool:
        """True if this process writes checkpoints: only rank 0 does."""
        return self.process_group.rank == 0

    @property
    def computes_on_gpus(self) -> bool:
        """True if all local devices are GPUs: then batches are copied to them during earlier steps."""
        return all(is_gpu(device) for device in self.layout.devices)

    @property
    def reason_against_xla(self) -> str | None:
        """Why XLA cannot compile for this process' GPUs, as a clause; None if it can, or if there are none."""
        return xla_support.reason_against_xla() if self.computes_on_gpus else None

    # ---- updates

    def update_replicas(
        self,
        gradients: Sequence[Any],
        update: Callable[[list[Any]], Any],
        targets: Sequence[Any] | None = None,
        accumulation: Accumulation | None = None,
        *,
        may_defer: bool = False,
    ) -> Any:
        """Synchronizes ``gradients`` and calls ``update`` with the result once per local replica.

        Call it in cross-replica context. Inside ``update`` every variable of the strategy means the component on that
        replica's device, and ops are placed there; ops that update a variable of another part of the replica are placed
        on the device of that part.

        Args:
            gradients: see :meth:`GradientSync.synchronized`, as for `targets` and `accumulation`.
            update: takes the gradients, in the same order.
            targets: for each gradient its variable.
            accumulation: given if the optimizer accumulates gradients over several steps.
            may_defer: True if nothing uses the result, or the updated variables, before metrics are read or
                :meth:`finish_update` is called. Then the update can be deferred until then, so that other sums across
                processes are fused with the gradients' reduction.

        Returns:
            The result of ``update`` for the first replica; None if the update is deferred.
        """
        if self.central is not None:
            return self.central.update(gradients, update, targets)
        update_of = functools.partial(self._updates.run, gradients, update, targets, accumulation)
        if may_defer and self.layout.num_processes > 1 and accumulation is None:
            self._updates.defer(update_of, targets)
            return None
        self.finish_update()
        return update_of(())[0]

    def sum_gradients(self, gradients: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
        """Returns the sums of gradients over all replicas, on each local replica. Call it in cross-replica context.

        Args:
            gradients: per-replica tensors or ``IndexedSlices``.
            targets: for each gradient the variable, or the per-replica tensor, with respect to which it was taken.
        """
        self.finish_update()
        # A tensor is on the devices of its gradient.
        where = [
            each if isinstance(each, tf.distribute.DistributedValues) else g
            for g, each in zip(gradients, targets, strict=True)
        ]
        return self._updates.synchronized(gradients, where)[0]

    def finish_update(self, fused: Sequence[FusedReduction] = ()) -> list[tf.Tensor] | None:
        """Runs the deferred update, if there is one; see :meth:`Updates.finish`. Call it in cross-replica context."""
        return self._updates.finish(fused)

    # ---- metrics

    @contextlib.contextmanager
    def metric_totals(self, variables: Iterable[Any]) -> Iterator[None]:
        """Context manager: reads of the metric ``variables`` return sums over all replicas, reduced in one message.

        Where stages are in several processes, the last one has the outputs: its sums are sent to all. Accumulated
        gradients stay each process' own.
        """
        if self.steps.context.totals is not None or (self.layout.num_processes == 1 and not self.parts.crosses("pipe")):
            yield
            return
        chosen = [v for v in variables if v.aggregation == tf.VariableAggregation.SUM]
        own = [FusedReduction.from_variable(v, self.layout.group_of(v)) for v in chosen]
        totals = self.finish_update(own)
        if totals is None:
            with carrying("metrics"):
                totals = self.reductions.across(SUM, [], fused=own)
        shown = [i for i, v in enumerate(chosen) if not isinstance(v, PartialSumVariable)]
        for i, total in zip(shown, self.parts.broadcast_last_stage([totals[i] for i in shown]), strict=True):
            totals[i] = total
        with self.steps.reading_totals(zip(chosen, totals, strict=True)):
            yield


def engine_of(strategy: tf.distribute.Strategy) -> Engine | None:
    """Returns the strategy's engine if the strategy is one of this package's, else None."""
    engine = getattr(strategy.extended, "engine", None)
    return engine if isinstance(engine, Engine) else None


def engine_of_processes(strategy: tf.distribute.Strategy | None) -> Engine | None:
    """Returns the strategy's engine if the strategy is one of this package's and its job has several processes."""
    engine = None if strategy is None else engine_of(strategy)
    return engine if engine is not None and engine.num_processes > 1 else None


def _exchanges_weights(sharding: ShardingGroups | None) -> bool:
    """Returns True if a replica sends weights or experts' tokens by messages of its own: each has to be traced."""
    if sharding is None:
        return False
    return sharding.shards_experts or (sharding.shards_weights and sharding.num_processes > 1)


def _check_alike(process_group: ProcessGroup, num_replicas: int, num_parts: int) -> int:
    """Raises an error on all processes if their numbers of devices differ: they would split batches differently.

    Returns:
        A random number drawn by rank 0, which identifies this strategy.
    """
    mine = tf.constant([[num_replicas, num_parts, secrets.randbelow(2**31)]], tf.int32)
    gathered = process_group.gather(mine).numpy().tolist()
    counts = [tuple(each[:2]) for each in gathered]
    if len(set(counts)) > 1:
        raise ValueError(
            "All processes must have the same number of devices. Hide some of them (CUDA_VISIBLE_DEVICES), or start "
            "other numbers of processes per host. Received, by rank: "
            f"{[replicas * parts for replicas, parts in counts]} devices."
        )
    return int(gathered[0][2])
