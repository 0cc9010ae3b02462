"""HorovodStrategy: many processes joined by Horovod, each of which owns one or several coordinates of a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from strategies import _keras_hooks, versions
from strategies._keras_hooks.checks import KerasStrategy
from strategies._tf_internals import eager_context
from strategies.collectives.process_group import DEFAULT_BUCKET_BYTES, ProcessGroup
from strategies.collectives.process_groups import join, meshes_between
from strategies.control_plane import this_process
from strategies.control_plane.this_process import log
from strategies.engine.multi_worker import extended_over
from strategies.engine.strategy import Sharded, num_sharing, sharding_of
from strategies.replica.parts import ReplicaParts
from strategies.topology.agreement import Request, agreed_nodes, claims
from strategies.topology.cluster import Cluster
from strategies.topology.devices import own_devices, pin_gpus, short_name
from strategies.topology.gpus import claim, refuse_shared
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import has_model_axes, mesh_over_processes, spans_processes
from strategies.topology.threads import limit_threads

#: Horovod fuses small all-reduces, but not the messages of a sharded optimizer: with two processes of one core each,
#: every message cost 3 ms.
_SHARDED_BUCKET_BYTES = 16 * 2**20


class HorovodStrategy(KerasStrategy):
    """Synchronous data parallelism over processes that Horovod joins, with the numbers of one device.

    Every process runs the same program on one device (the GPU of its local rank, else the CPU), or on more if ``mesh``
    asks for them. It holds a copy of the variables and takes its rows of every global batch. Initial values are rank
    0's. There is nothing to wrap, to scale or to broadcast: make the model, the optimizer and the metrics inside
    ``strategy.scope()`` and call ``fit``.

    Start the program with ``horovodrun``, or with ``mpirun`` if Horovod was built for MPI; started alone, it is a job
    of one process. The strategy initialises Horovod, unless the program has already called ``hvd.init()``. Processes of
    one node share its cores: if the strategy is made before TensorFlow has run anything, it gives TensorFlow as many
    threads as the process has cores, unless a number is set, in the environment or with ``tf.config.threading``.

    Args:
        mesh: sizes of named mesh axes, as in ``{"data": 4}``, or ``{"data": 2, "expert": 2}``, where MoE layers
            distribute their experts over "expert"; one may be -1, to be inferred. With ``"pipe"`` or ``"tensor"`` as
            well, as in ``{"data": 2, "pipe": 2}``, a process uses all of its devices (its share of the node's GPUs, or
            its logical CPU devices). In whatever order the axes are given, ranks fill the mesh in the order data,
            expert, pipe, tensor, with "tensor" fastest: consecutive ranks hold the shards of one stage, then the stages
            of one replica, then other replicas. Each process owns a block of the mesh: one device of a replica that
            spans processes, several shards of a stage, whole stages, or whole replicas. It makes, holds and loads the
            variables of its own devices; the processes of one replica take the same rows.
        shard: "optimizer" shards the optimizer's slots and updates over the data axis (ZeRO-1, arXiv:1910.02054): each
            device updates its shard of the weights and all-gathers the new weights. "gradients" (ZeRO-2) is the same:
            with both, no device has the sum of all gradients. "weights" (ZeRO-3) shards the weights as well: a device
            holds its shard of each, and all-gathers whole weights while it computes with them. With None, every device
            holds all slots.
        shard_size: the number of replicas over which state is sharded, a divisor of the data axis; every group of
            `shard_size` replicas holds all shards (arXiv:2205.00119). None means the replicas of one host if there are
            several hosts with equal numbers of replicas, else all replicas.
        compression: the dtype to which gradients are rounded for communication, "fp16" or "bf16"; None for no rounding.
        reduction: "average", the gradient of the global batch; or "adasum" (Maleki et al., arXiv:2006.02924), which
            combines the gradients of the processes' rows so that the learning rate need not change with their number.
            Horovod supports it over MPI only, for 2, 4, 8, ... processes of whole replicas, on meshes without
            ``"tensor"``.
        bucket_bytes: the largest number of bytes of gradients in one message. None means 4 MiB, or 16 MiB with
            ``shard`` or the mesh axis ``"expert"``.
        timeout_seconds: how long a process waits in a collective for another that is alive but does not join it, before
            Horovod is shut down on all processes; 0 for no limit.

    Example:

        # horovodrun -np 2 python train.py
        strategy = strategies.HorovodStrategy(compression="bf16")
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=2 if strategy.is_chief else 0)

    Raises:
        ImportError: Horovod is not installed; the message has the command that installs it.
        ValueError: a mesh that does not fit the devices of all processes; an option that is not listed above, or that
            Horovod was not built for; processes that ask for different strategies or would share a GPU; TensorFlow has
            already started with all GPUs of the node.

    Source: the engine is Horovod 0.28 (Sergeev and Del Balso, arXiv:1802.05799); the interface is that of
    ``tf.distribute.Strategy``, TensorFlow 2.21.
    """

    def __init__(
        self,
        *,
        mesh: Mapping[str, int] | None = None,
        shard: Sharded = None,
        shard_size: int | None = None,
        compression: Literal["fp16", "bf16"] | None = None,
        reduction: Literal["average", "adasum"] = "average",
        bucket_bytes: int | None = None,
        timeout_seconds: float = 600.0,
    ) -> None:
        if compression not in (None, "fp16", "bf16") or reduction not in ("average", "adasum"):
            raise ValueError(
                "compression must be 'fp16', 'bf16' or None, and reduction 'average' or 'adasum'. Received: "
                f"compression={compression!r}, reduction={reduction!r}."
            )
        is_sharded = shard is not None or (mesh or {}).get("expert", 1) != 1
        if is_sharded and (compression is not None or reduction != "average"):
            raise ValueError(
                "Gradients of which each process gets a part are neither compressed nor combined by Adasum. Leave out "
                "shard and the mesh axis 'expert', or compression and reduction. Received: "
                f"shard={shard!r}, mesh={mesh!r}, compression={compression!r}, reduction={reduction!r}."
            )
        if bucket_bytes is None:
            bucket_bytes = _SHARDED_BUCKET_BYTES if is_sharded else DEFAULT_BUCKET_BYTES
        # Imported only here: the rest of the package works without Horovod.
        from strategies.collectives import horovod

        cluster = self._cluster = Cluster.from_environment()
        limit_threads(cluster, has_started=eager_context.context()._initialized)
        pin_gpus(cluster.local_rank, cluster.local_size)
        devices = own_devices() if has_model_axes(mesh) else own_devices()[:1]
        request = Request(
            type(self).__name__,
            None if mesh is None else dict(mesh),
            len(devices),
            {"compression": compression, "reduction": reduction, "bucket_bytes": bucket_bytes}
            | {"timeout_seconds": timeout_seconds, "shard": shard, "shard_size": shard_size},
            cluster.node_rank,
            versions.installed(),
            claim(),
        ).to_text()
        limit = timeout_seconds or None
        # The processes agree on the mesh before Horovod starts, because it needs the mesh's process sets at its start.
        member = this_process.joined(lambda: horovod.joined(limit, log))
        requests = None if member is None else member.agree(request)
        nodes: tuple[int, ...] = () if requests is None else agreed_nodes(requests)
        self._mesh = mesh_over_processes(cluster.world_size, mesh, [short_name(device) for device in devices])
        sharding = sharding_of(shard, shard_size, self._mesh, nodes)
        grid = self._mesh.with_experts_as_data()
        if reduction == "adasum":
            _check_adasum(grid)
        between = meshes_between(grid, num_sharing(sharding))
        # Any two stages of one model may send to each other, not only neighbours.
        rank = horovod.start(*between, channel_axes=("pipe",), all_pairs=True, timeout_seconds=timeout_seconds)
        if cluster.world_size > 1:
            requests = horovod.gathered(request) if requests is None else requests
            refuse_shared(claims(requests))
            nodes = agreed_nodes(requests)
        _keras_hooks.install()
        self._collective_key_base = 0
        groups = None
        options: dict[str, Any] = {"compression": compression, "reduction": reduction}
        if cluster.world_size > 1:
            groups = join(
                grid,
                lambda mesh: horovod.HorovodCollectives(mesh, rank, timeout_seconds=timeout_seconds, member=member),
                lambda collectives, axis, _: ProcessGroup(
                    collectives, bucket_bytes, axis=axis, **(options if axis == "data" else {})
                ),
                num_sharing(sharding),
            )
        parts = ReplicaParts.from_process(grid, devices, rank, groups)
        extended = extended_over(self, parts, member, sharding)
        super().__init__(extended)
        self._log_crossings(nodes)
        #: The implementation of reductions between processes: "NCCL", "MPI" or "Gloo".
        self.communication = horovod.implementation(devices[0])


def _check_adasum(mesh: DeviceMesh) -> None:
    """Raises ValueError for a mesh on which a process has only a part of a gradient."""
    if mesh.axis_size("tensor") == 1 and not spans_processes(mesh):
        return
    raise ValueError(
        "Adasum looks at all of a weight's gradient, of which the axis 'tensor' leaves a part on each device, and "
        "combines those of whole replicas, one or more in each process. Use reduction='average', or a mesh without "
        f"'tensor' in which no replica spans processes. Received: reduction='adasum', mesh={mesh.axes} over "
        f"{mesh.num_processes} processes."
    )
