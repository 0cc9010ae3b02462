"""Carries out a fault in this process. Standard library only."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time

from strategies.testing.faults.plan import Fault

_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}


def strike(fault: Fault, rank: int, where: str = "") -> None:
    """Carries out a fault in this process. It returns if the fault has `byte`, is "slow", or is a "stop" that ends.

    Raises:
        RuntimeError: for the kind "raise".
        SystemExit: for the kind "leave".
        OSError: for the kind "full_disk" without `byte`.
    """
    if fault.kind != "slow":
        print(f"faults: rank {rank}, process {os.getpid()}: {fault}{where}", file=sys.stderr, flush=True)
    if fault.byte is not None:
        limit_files(fault.byte, deadly=fault.kind == "kill")
    elif fault.kind == "raise":
        raise RuntimeError(f"A fault that was asked for: {fault}.")
    elif fault.kind == "leave":
        sys.exit(0)
    elif fault.kind == "full_disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"(a fault that was asked for: {fault})")
    elif fault.kind == "slow":
        time.sleep(fault.seconds or 0.0)
    elif fault.kind == "stop" and fault.seconds is not None:
        _stop_for(fault.seconds)
    else:
        os.kill(os.getpid(), _SIGNALS[fault.kind])


def limit_files(num_bytes: int, *, deadly: bool) -> None:
    """Makes every write beyond that file size fail with EFBIG, or, if `deadly`, end the process (SIGXFSZ).

    The kernel enforces it during a write, whoever writes, HDF5 included. For a library EFBIG is like ENOSPC, an error
    of `write` (for HDF5 1.14 with h5py 3, too: the same OSError, and the same SIGSEGV when the interpreter ends).
    """
    if deadly:
        # No core file, which would be written beside the files.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Python ignores the signal from its start.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def unlimit_files() -> None:
    """Removes the limit that `limit_files` set."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _stop_for(seconds: float) -> None:
    """Stops this process for some seconds, by a process that stops and continues it.

    That process sends both signals, so that they cannot overtake each other. It outlives this one by `seconds` at most.
    """
    command = 'kill -STOP "$1"; sleep "$0"; kill -CONT "$1" 2> /dev/null'
    null = subprocess.DEVNULL
    # In a session of its own and without our pipes, so that a launcher waits only for the program.
    subprocess.run(
        ["/bin/sh", "-c", command, str(seconds), str(os.getpid())],
        stdin=null,
        stdout=null,
        stderr=null,
        start_new_session=True,
        check=False,
    )
