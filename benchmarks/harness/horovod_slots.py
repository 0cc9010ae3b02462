"""Environments for processes of Horovod over Gloo on this machine, as horovodrun would set them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.clusters import Environments, Slots, one_thread_each


@contextlib.contextmanager
def rendezvous_of_each() -> Iterator[Slots]:
    """Context manager: yields a function that makes the environments of a job; rendezvous stay open until the end."""
    with contextlib.ExitStack() as stack:
        yield lambda num_processes: stack.enter_context(rendezvous(num_processes))


@contextlib.contextmanager
def rendezvous(num_processes: int) -> Iterator[Environments]:
    """Context manager: yields the environments of one job's processes, which can connect until the block ends.

    horovodrun itself cannot start them: the benchmark's processes communicate with the process that started them. So
    this process runs the rendezvous server, as horovodrun would.
    """
    # Imported only where Horovod is measured: the other contenders work without it.
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousServer

    slots = get_host_assignments(parse_hosts(f"localhost:{num_processes}"), num_processes)
    server = RendezvousServer()
    port = server.start()
    server.init(slots)
    shared = {
        **one_thread_each(),
        **{name: str(value) for name, value in create_run_env_vars("127.0.0.1", ["lo"], port).items()},
        # Frozen between their turns, the processes must not time out on each other.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(24 * 60 * 60),
        "HOROVOD_STALL_CHECK_DISABLE": "1",
    }
    try:
        yield tuple({**shared, **create_slot_env_vars(slot)} for slot in slots)
    finally:
        server.stop()
