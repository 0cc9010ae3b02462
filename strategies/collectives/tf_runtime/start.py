"""The limits of TensorFlow's own waits for other processes, which are set before it starts."""

from __future__ import annotations

from strategies._tf_internals import coordination_config, eager_context

# About 24 days: the service takes no "never".
_NEVER_MILLISECONDS = 2**31 - 1
# Our own limit comes first: its error says who is missing, and where.
_SECONDS_BEHIND_OURS = 5.0


def bound_waits(num_processes: int, timeout_seconds: float) -> None:
    """Makes TensorFlow wait as long as it is told, where it would choose a time of its own.

    By default it waits an hour for a process that does not come, and takes one for dead that has not been heard of for
    10 s, be it that its host's link is gone for that long (TensorFlow 2.21). It may notice a process that was killed by
    its silence only, and rank 0 may wait for ever for one that never came: the control plane finds both earlier. Call
    it before TensorFlow starts, or nothing changes.

    Args:
        num_processes: of the job, all of which are workers.
        timeout_seconds: the limit of both waits; 0 for none.
    """
    milliseconds = int(1000 * (timeout_seconds + _SECONDS_BEHIND_OURS))
    limit = min(_NEVER_MILLISECONDS, milliseconds) if timeout_seconds else _NEVER_MILLISECONDS
    eager_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=limit,
        heartbeat_timeout_in_ms=limit,
        coordinated_jobs=[coordination_config.CoordinatedJob(name="worker", num_tasks=num_processes)],
    )
