"""The limits of TensorFlow's own waits for other processes, which are set before TensorFlow starts."""

from __future__ import annotations

from strategies._tf_internals import coordination_config, eager_context

# About 24 days: the service has no value for "never".
_NEVER_MILLISECONDS = 2**31 - 1
# Our own limit expires first: its error says who is missing, and where.
_SECONDS_AFTER_OURS = 5.0


def bound_waits(num_processes: int, timeout_seconds: float) -> None:
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
