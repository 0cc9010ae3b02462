"""MultiWorkerMirroredStrategy: many processes joined by TensorFlow's collective runtime."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence

import tensorflow as tf

from strategies import _keras_hooks, versions
from strategies._keras_hooks.checks import KerasStrategy
from strategies._tf_internals import coordination_config, eager_context
from strategies.collectives.base import Collectives
from strategies.collectives.process_group import DEFAULT_BUCKET_BYTES, ProcessGroup
from strategies.collectives.process_groups import ProcessGroups, join
from strategies.collectives.tf_runtime import TensorFlowCollectives
from strategies.control_plane import Member, RankInfo, join_job, port_problem, this_process
from strategies.control_plane.this_process import log
from strategies.engine.multi_worker import extended_over
from strategies.engine.strategy import Sharded, num_sharing, sharding_of
from strategies.replica.parts import ReplicaParts
from strategies.topology.agreement import Request, agreed_nodes, claims
from strategies.topology.cluster import Cluster
from strategies.topology.devices import is_gpu, own_devices, pin_gpus, short_name
from strategies.topology.gpus import claim, refuse_shared
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import local_grid, mesh_over_processes

#: A collective fails if not all processes have joined it after this time. A process that ends is detected at once; this
#: limit is for one that is alive and never joins. It must exceed the time that one process works alone: saving,
#: building, tracing.
TIMEOUT_SECONDS = 600.0
#: On GPUs buckets are reduced one after the other, each by one launch of NCCL, which is fast for large messages only.
#: Not measured.
BUCKET_BYTES_ON_GPUS = 32 * 2**20
# About 24 days: the service has no value for "never".
_NEVER_MILLISECONDS = 2**31 - 1
# Our own limit expires first: its error says who is missing, and where.
_SECONDS_AFTER_OURS = 5.0


class MultiWorkerMirroredStrategy(KerasStrategy, tf.distribute.MultiWorkerMirroredStrategy):
    """Synchronous data parallelism over the devices of many processes, with the numbers of one device.

    Every process runs the same program; each of its devices holds a copy of the variables and takes its rows of every
    global batch. All processes must write the same values with ``assign``, ``fit`` and ``load_weights``. Initial values
    are rank 0's. Make the strategy before anything else: TensorFlow can join processes only before it has run anything.

    The processes find each other by ``TF_CONFIG`` (``python -m strategies.launch`` sets it), by Slurm's variables if
    ``srun`` started them, or by those of SageMaker (``SM_HOSTS``) and Vertex AI (``CLUSTER_SPEC``). Without any of
    them, the job is this one process.

    Args:
        cluster_resolver: a ``tf.distribute.cluster_resolver.ClusterResolver`` that names the tasks and this one; None
            to read the environment.
        communication_options: ``tf.distribute.experimental.CommunicationOptions``: ``implementation`` (between GPUs,
            NCCL unless it is RING), ``timeout_seconds``, and ``bytes_per_pack``, the largest number of bytes of
            gradients in one message (0 for our default: 4 MiB, between GPUs 32 MiB).
        mesh: sizes of named mesh axes over the devices of all processes, as in ``{"data": 2, "pipe": 2}`` over two
            processes of two devices; one may be -1, to be inferred. The axes ``"expert"``, ``"pipe"`` and ``"tensor"``
            are those of ``MirroredStrategy``. In whatever order the axes are given, ranks fill the mesh in the order
            data, expert, pipe, tensor, with "tensor" fastest: consecutive ranks hold the shards of one stage, then the
            stages of one replica, then other replicas. Each process owns a block of the mesh: one device of a replica
            that spans processes, several shards of a stage, whole stages, or whole replicas. It makes, holds and loads
            the variables of its own devices; the processes of one replica take the same rows.
        shard: "optimizer" shards the optimizer's slots and updates over the data axis (ZeRO-1, arXiv:1910.02054): each
            device updates its shard of the weights and all-gathers the new weights. "gradients" (ZeRO-2) is the same:
            with both, no device has the sum of all gradients. "weights" (ZeRO-3) shards the weights as well: a device
            holds its shard of each, and all-gathers whole weights while it computes with them. With None, every device
            holds all slots.
        shard_size: the number of replicas over which state is sharded, a divisor of the data axis; every group of
            `shard_size` replicas holds all shards (arXiv:2205.00119). None means the replicas of one host if there are
            several hosts with equal numbers of replicas, else all replicas.
        timeout_seconds: how long a process waits in a collective, or for the others to join, before it raises an error;
            0 for no limit. None means that of `communication_options`, and 600 without it.

    Example:

        # python -m strategies.launch --nproc-per-node=2 train.py
        strategy = strategies.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=2 if strategy.is_chief else 0)

    Raises:
        ValueError: an environment or a resolver that does not name all tasks; a mesh that does not fit the devices
            of all processes; two different limits of time; processes that ask for different strategies or would share
            a GPU; TensorFlow has already started.

    Source: the interface of ``tf.distribute.MultiWorkerMirroredStrategy``, TensorFlow 2.21.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        *,
        mesh: Mapping[str, int] | None = None,
        shard: Sharded = None,
        shard_size: int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        communication_options = _with_timeout(communication_options, timeout_seconds)
        cluster = Cluster.from_environment() if cluster_resolver is None else _resolved(cluster_resolver)
        self._cluster = cluster
        member = _start_runtime(cluster, _timeout(communication_options)) if cluster.world_size > 1 else None
        devices = own_devices()
        nodes: tuple[int, ...] = ()
        if member is not None:
            request = _request(cluster, mesh, len(devices), communication_options, (shard, shard_size))
            requests = member.agree(request.to_text())
            nodes = agreed_nodes(requests)
            refuse_shared(claims(requests))
        self._mesh = mesh_over_processes(cluster.world_size, mesh, [short_name(device) for device in devices])
        sharding = sharding_of(shard, shard_size, self._mesh, nodes)
        grid = self._mesh.with_experts_as_data()
        _keras_hooks.install()
        # Read by TensorFlow's MirroredExtended.
        self._collective_key_base = 0
        groups = None
        if cluster.world_size > 1:
            groups = _join(cluster, grid, communication_options, num_sharing(sharding))
        parts = ReplicaParts.from_process(grid, devices, cluster.rank, groups)
        extended = extended_over(self, parts, member, sharding)
        extended._cluster_resolver = cluster_resolver or _resolver(cluster)
        tf.distribute.Strategy.__init__(self, extended)
        self._log_crossings(nodes)
        asked = communication_options.implementation.value if communication_options else "AUTO"
        #: The implementation of reductions between processes: "NCCL", or TensorFlow's own "ring" through the hosts.
        self.communication = "NCCL" if is_gpu(devices[0]) and asked != "RING" else "ring"


def _with_timeout(
    options: tf.distribute.experimental.CommunicationOptions | None, timeout_seconds: float | None
) -> tf.distribute.experimental.CommunicationOptions | None:
    if timeout_seconds is None:
        return options
    options = options or tf.distribute.experimental.CommunicationOptions()
    if options.timeout_seconds not in (None, timeout_seconds):
        raise ValueError(
            "The strategy and its communication_options have different limits: give one of them. Received: "
            f"timeout_seconds={timeout_seconds}, communication_options with timeout_seconds={options.timeout_seconds}."
        )
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack, timeout_seconds=timeout_seconds, implementation=options.implementation
    )


def _timeout(options: tf.distribute.experimental.CommunicationOptions | None) -> float:
    asked = None if options is None else options.timeout_seconds
    return TIMEOUT_SECONDS if asked is None else float(asked)


def _request(
    cluster: Cluster,
    mesh: Mapping[str, int] | None,
    num_devices: int,
    options: tf.distribute.experimental.CommunicationOptions | None,
    sharding: tuple[Sharded, int | None],
) -> Request:
    """Returns the strategy that this process asks for; if processes ask for different ones, all of them raise."""
    chosen = None
    if options is not None:
        chosen = [options.implementation.value, options.bytes_per_pack, options.timeout_seconds]
    return Request(
        "MultiWorkerMirroredStrategy",
        None if mesh is None else dict(mesh),
        num_devices,
        {"communication_options": chosen, "shard": sharding[0], "shard_size": sharding[1]},
        cluster.node_rank,
        versions.installed(),
        claim(),
    )


def _join(
    cluster: Cluster,
    mesh: DeviceMesh,
    options: tf.distribute.experimental.CommunicationOptions | None,
    num_together: int,
) -> ProcessGroups:
    """Returns this process' groups on a mesh over the devices of all; `num_together` processes share the optimizer."""
    options = options or tf.distribute.experimental.CommunicationOptions()
    name = options.implementation.value
    make_collectives = functools.partial(
        TensorFlowCollectives,
        rank=cluster.rank,
        implementation="auto" if name == "AUTO" else name,
        timeout_seconds=_timeout(options),
        member=this_process.current(),
    )
    columns = list(zip(*local_grid(mesh, cluster.rank), strict=True))

    def make_group(collectives: Collectives, axis: str, part: int) -> ProcessGroup:
        devices, between_devices = columns[part], None
        if axis == "data" and _sum_between_devices(devices):
            between_devices = make_collectives(DeviceMesh.from_processes(cluster.world_size, local_devices=devices))
        default_bytes = BUCKET_BYTES_ON_GPUS if is_gpu(devices[0]) else DEFAULT_BUCKET_BYTES
        bucket_bytes = options.bytes_per_pack or default_bytes
        return ProcessGroup(collectives, bucket_bytes, axis=axis, between_devices=between_devices)

    return join(mesh, make_collectives, make_group, num_together)


def _sum_between_devices(devices: Sequence[str]) -> bool:
    """Returns True if NCCL sums over all devices of all processes at once, without a first sum inside each process."""
    return len(devices) > 1 and all(is_gpu(device) for device in devices)


def _resolved(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> Cluster:
    """Returns the cluster that a TensorFlow cluster resolver describes."""
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return Cluster()
    kind, index = resolver.task_type, resolver.task_id
    if kind is None or index is None or kind not in jobs:
        raise ValueError(
            "A cluster resolver must define which task this process is: give it `task_type` and `task_id`. "
            f"Received: task_type={kind!r}, task_id={index!r}, cluster {jobs}."
        )
    chiefs = [*jobs.get("chief", []), *jobs.get("master", [])]
    addresses = [*chiefs, *jobs.get("worker", [])]
    return Cluster.from_addresses(addresses, index + (len(chiefs) if kind == "worker" else 0))


def _resolver(cluster: Cluster) -> tf.distribute.cluster_resolver.ClusterResolver:
    if not cluster.addresses:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        # One job for all: TensorFlow numbers the members of a collective by the names of their devices.
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )


def _start_runtime(cluster: Cluster, timeout_seconds: float) -> Member:
    """Joins this process and its TensorFlow runtime to the others, unless an earlier strategy has done so."""
    if not cluster.addresses:
        raise ValueError(
            f"MultiWorkerMirroredStrategy needs the address of every process, which {cluster.source} does not contain. "
            "Start the program with `python -m strategies.launch`, set TF_CONFIG, or use HorovodStrategy."
        )
    if eager_context.context()._initialized:
        own_device = tf.DeviceSpec.from_string(tf.constant(0).device)
        member = this_process.current()
        if (own_device.job, own_device.task) == ("worker", cluster.rank) and member is not None:
            return member
        raise ValueError(
            "TensorFlow has started without the other processes, and cannot join them any more. Make the "
            "MultiWorkerMirroredStrategy before anything else that runs TensorFlow: datasets, tensors, models."
        )
    member = this_process.current() or _joined(cluster, timeout_seconds)
    this_process.joined(lambda: member)
    pin_gpus(cluster.local_rank, cluster.local_size)
    _bound_waits(cluster.world_size, timeout_seconds)
    # The stock strategy is the only public way to start the runtime; it is not used for anything else.
    tf.distribute.MultiWorkerMirroredStrategy(_resolver(cluster))
    return member


def _bound_waits(num_processes: int, timeout_seconds: float) -> None:
    """Sets how long TensorFlow waits for a process to connect and for its heartbeats, in place of its defaults.

    By default TensorFlow waits an hour for a process to connect, and takes a process for dead after 10 s without a
    heartbeat, even if only its host's network link is down (TensorFlow 2.21). It may notice a killed process only by
    missing heartbeats, and rank 0 may wait for ever for one that never connects: the control plane finds both earlier.
    Call it before TensorFlow starts; later it has no effect.

    Args:
        num_processes: the number of processes of the job, all of which are workers.
        timeout_seconds: the limit of both waits; 0 for none.
    """
    milliseconds = int(1000 * (timeout_seconds + _SECONDS_AFTER_OURS))
    limit = min(_NEVER_MILLISECONDS, milliseconds) if timeout_seconds else _NEVER_MILLISECONDS
    eager_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=limit,
        heartbeat_timeout_in_ms=limit,
        coordinated_jobs=[coordination_config.CoordinatedJob(name="worker", num_tasks=num_processes)],
    )


def _joined(cluster: Cluster, timeout_seconds: float) -> Member:
    """Joins this process to the others at the address where TensorFlow's server of rank 0 will listen.

    TensorFlow itself would wait an hour for missing processes, without a message.
    """
    rank, size, address = cluster.rank, cluster.world_size, cluster.addresses[cluster.rank]
    problem = None if rank == 0 else port_problem(rank, address)
    info = RankInfo(rank, size, f"process {os.getpid()} at {address}")
    store, _ = join_job(info, cluster.addresses[0], "", timeout_seconds or None, problem=problem, log=log)
    return Member(rank, size, store, timeout_seconds)
