"""A contender in its own processes, which live as long as the benchmark and measure when it is their turn.

Each contender has separate processes, so that its effects on TensorFlow, Keras or memory do not reach the others. The
processes stay alive, because contenders are measured in turn, many times, and should start up only once. A process that
is not measuring waits for a message and takes no CPU time.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

Report = Callable[[float], None]
Run = Callable[[Report], None]

EXIT_TIMEOUT_SECONDS = 10
_PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A contender could not be measured; the message says which one and why."""


@dataclass(frozen=True)
class Contender:
    """Something to measure.

    Args:
        name: its row in the tables.
        run: called once in each process with `report`. It measures and reports in an endless loop: `report(value)`
            sends a measurement, waits for the next turn, and ends the process when there is none. So it can sit in a
            callback of one long training. Picklable. It imports TensorFlow only when called, so that the benchmark's
            own process stays small.
        environments: variables to add to the environment, one mapping for each process; they are set before the
            process imports anything. The processes measure at the same time.
        cores: for each process the cores that it may use; None for all cores of the benchmark.
        freezes: whether its processes are stopped (SIGSTOP) while others are measured. For processes that take CPU
            time while they wait, such as Horovod's; they must not have timeouts that expire meanwhile.
    """

    name: str
    run: Run
    environments: tuple[Mapping[str, str], ...] = ({},)
    cores: tuple[Sequence[int], ...] | None = None
    freezes: bool = False


class Workers:
    """The running processes of one contender.

    Their first measurement is made at once and discarded: it includes building, tracing and cold caches.

    Args:
        contender: the contender to run.
        timeout_seconds: timeout of each measurement; the first one includes the start of the processes.

    Raises:
        WorkerError: a process fails, dies or takes too long in its first measurement.
    """

    def __init__(self, contender: Contender, timeout_seconds: float) -> None:
        self._name = contender.name
        self._timeout_seconds = timeout_seconds
        self._freezes = contender.freezes
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        # Not fork: TensorFlow does not survive it.
        context = multiprocessing.get_context("spawn")
        try:
            cores = contender.cores or (None,) * len(contender.environments)
            for environment, own_cores in zip(contender.environments, cores, strict=True):
                own_end, child_end = context.Pipe()
                process = context.Process(target=_serve, args=(contender.run, child_end, own_cores), daemon=True)
                with _environment(environment):
                    process.start()
                child_end.close()
                self._processes.append(process)
                self._connections.append(own_end)
            self._receive()
            self._freeze()
        except BaseException:
            self.stop()
            raise

    def measure(self) -> tuple[float, ...]:
        """Measures once, in all processes at the same time; returns the measurement of each.

        Raises:
            WorkerError: a process fails, dies or takes too long.
        """
        self._signal(signal.SIGCONT)
        for connection in self._connections:
            # A dead process is reported when its answer is missing, which gives the reason.
            with contextlib.suppress(BrokenPipeError):
                connection.send("measure")
        values = self._receive()
        self._freeze()
        return values

    def stop(self) -> None:
        """Kills the processes: they have nothing to save, and some take long to shut down."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.join()

    def _freeze(self) -> None:
        if self._freezes:
            self._signal(signal.SIGSTOP)

    def _signal(self, signum: int) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signum)

    def _receive(self) -> tuple[float, ...]:
        values = []
        for index, (process, connection) in enumerate(zip(self._processes, self._connections, strict=True)):
            who = f"Contender {self._name!r}, process {index} of {len(self._processes)}"
            if not connection.poll(self._timeout_seconds):
                raise WorkerError(f"{who}: no answer for {self._timeout_seconds} s. Allow it more time, or less work.")
            try:
                answer = connection.recv()
            except (EOFError, ConnectionResetError) as error:
                process.join(EXIT_TIMEOUT_SECONDS)
                raise WorkerError(f"{who}: ended by itself, exit code {process.exitcode}.") from error
            if isinstance(answer, str):
                raise WorkerError(f"{who}: failed.\n{answer}")
            values.append(float(answer))
        return tuple(values)


def _serve(run: Run, connection: Connection, cores: Sequence[int] | None) -> None:
    """Runs `run` in a process of a contender, until the other end of the connection closes."""
    if sys.platform == "linux":
        # A frozen process would not notice the end of the benchmark, and stay forever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
        if cores is not None:
            # Before TensorFlow starts: existing threads would keep their cores.
            os.sched_setaffinity(0, cores)

    def report(value: float) -> None:
        connection.send(value)
        connection.recv()

    try:
        run(report)
        connection.send("It returned, instead of measuring again.")
    except (EOFError, ConnectionError, KeyboardInterrupt):
        # The benchmark is over, was interrupted, or has failed: nobody is left to report to.
        return
    except Exception:
        connection.send(traceback.format_exc())


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Context manager: adds `variables` to this process' environment, which processes started in the block inherit."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
