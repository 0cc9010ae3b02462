"""The processes of a node: started, signalled and ended together. Standard library only."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strategies.launching.messages import Outcome
from strategies.launching.output import Output
from strategies.launching.ports import LaunchError
from strategies.launching.signals import STOPPING
from strategies.topology.rank_end import PREEMPTED

_PR_SET_PDEATHSIG = 1
# A killed process that does not end within this time is blocked in the kernel.
_KILLED_SECONDS = 10.0


@dataclass(frozen=True)
class Task:
    """A process to start: its rank, command, environment and cores (None: the launcher's)."""

    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    cores: Sequence[int] | None = None


class Process:
    """A running task, the leader of its own session and process group."""

    def __init__(self, task: Task, output: Output, prepare: Callable[[], None]) -> None:
        self.rank = task.rank
        #: None while it runs; then its exit code, or minus the signal that killed it.
        self.status: int | None = None
        streams: Sequence[int] = ()
        try:
            streams = stdout, stderr = output.connect(task.rank)
            self._popen = subprocess.Popen(
                task.command,
                env=task.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # A Ctrl-C at the terminal then reaches the launcher only, which forwards it once.
                start_new_session=True,
                preexec_fn=prepare,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(f"Rank {task.rank} cannot be started: {error}. Command: {task.command}") from None
        finally:
            for stream in streams:
                os.close(stream)
        self.pid = self._popen.pid

    def look(self) -> bool:
        """True if it has ended since the last call."""
        if self.status is not None:
            return False
        if not hasattr(os, "waitid"):
            self.status = self._popen.poll()
        # It stays a zombie until `end`: its pid is not reused, and no other process can get our signals.
        elif ended := os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return self.status is not None

    @property
    def is_stopped(self) -> bool:
        """True if it is stopped by a signal such as SIGSTOP, and not by a debugger."""
        if self.status is not None or not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            # It has ended since the last `look`; the next one will find that.
            return False

    def signal(self, signum: int) -> None:
        """Sends a signal: terminating ones to its process group, others to this process only."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if signum in (*STOPPING, signal.SIGKILL):
                os.killpg(self.pid, signum)
            else:
                os.kill(self.pid, signum)

    def end(self) -> None:
        """Reaps the process, which has been killed or has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_KILLED_SECONDS)
        if self.status is None:
            # A process that SIGKILL does not end counts as killed.
            self.status = -signal.SIGKILL


class Ranks:
    """The ranks of this node in one round. Make it in the main thread: the system kills them when that thread ends.

    Args:
        tasks: the processes to start.
        output: copies their output.

    Raises:
        LaunchError: a process cannot be started; those already started are killed.
    """

    def __init__(self, tasks: Sequence[Task], output: Output) -> None:
        self._processes: list[Process] = []
        #: The ranks that did not end in time.
        self.killed: tuple[int, ...] = ()
        #: The time of the signal to end; if `is_terminating` is False, the time at which the wait for their end began.
        self.stopped_at: float | None = None
        self.is_terminating = False
        self._deadline = float("inf")
        try:
            for task in tasks:
                self._processes.append(Process(task, output, _preparation(task)))
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> Sequence[Process]:
        """All processes of this round."""
        return self._processes

    @property
    def running(self) -> list[Process]:
        """The processes that have not ended."""
        return [process for process in self._processes if process.status is None]

    @property
    def stopped(self) -> list[Process]:
        """The processes that have not ended, if all of them are stopped; else an empty list."""
        running = self.running
        return running if all(process.is_stopped for process in running) else []

    @property
    def ended_well(self) -> list[int]:
        """The ranks that have ended with exit code 0."""
        return [process.rank for process in self._processes if process.status == 0]

    @property
    def outcome(self) -> Outcome:
        """The result of all ranks, once they have ended."""
        statuses = {process.status for process in self._processes}
        if statuses <= {0}:
            return Outcome.DONE
        return Outcome.PREEMPTED if statuses <= {0, PREEMPTED} else Outcome.FAILED

    @property
    def seconds_left(self) -> float:
        """The seconds until the ranks must have ended; infinite without a limit."""
        return self._deadline - time.monotonic()

    def look(self) -> list[Process]:
        """Returns the processes that have ended since the last call."""
        return [process for process in self._processes if process.look()]

    def signal(self, signum: int) -> None:
        """Sends a signal to all ranks."""
        for process in self._processes:
            process.signal(signum)

    def wait(self, seconds: float) -> None:
        """Gives all ranks a time limit to end by themselves."""
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            self._deadline = self.stopped_at + seconds

    def stop(self, signum: int, grace_seconds: float) -> None:
        """Signals all ranks, once, to end within a time; a later call can only shorten the time."""
        now = time.monotonic()
        if not self.is_terminating:
            self.is_terminating, self.stopped_at, self._deadline = True, now, now + grace_seconds
            self.signal(signum)
        self._deadline = min(self._deadline, now + grace_seconds)

    def kill(self) -> None:
        """Notes the ranks that still run as killed; `close` kills them."""
        self.killed = tuple(process.rank for process in self.running)

    def close(self) -> None:
        """Kills all processes and their process groups, and reaps them."""
        self.signal(signal.SIGKILL)
        for process in self._processes:
            process.end()


def _preparation(task: Task) -> Callable[[], None]:
    """Returns the function to run in a new process between fork and exec; it does little, as we may have threads."""
    launcher = os.getpid()
    # Looked up before the fork: after it, the lookup could deadlock on a lock held by a thread of ours.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    kill_me_too = (_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
    pin = getattr(os, "sched_setaffinity", None)

    def prepare() -> None:
        # The inherited wakeup file descriptor would pass signals of this process to the launcher.
        signal.set_wakeup_fd(-1)
        if prctl is not None:
            prctl(*kill_me_too)
            if os.getppid() != launcher:
                # The launcher was killed before prctl took effect.
                os.kill(os.getpid(), signal.SIGKILL)
        if pin is not None and task.cores is not None:
            # If a core is no longer available, the process is slower, but correct.
            with contextlib.suppress(OSError):
                pin(0, task.cores)

    return prepare
