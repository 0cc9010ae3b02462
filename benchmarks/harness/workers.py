"""A contender in processes of its own, which live as long as the benchmark and measure when it is their turn.

A process each, because what one contender does to TensorFlow, Keras or the memory of a process must not be felt by
another. Processes that live on, because contenders are measured in turn, many times, and start up only once. A
process that is not measuring waits for a message and takes no processor time.
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
        run: called once in each process with `report`. It measures and reports for ever: `report(value)` hands
            a measurement over, waits for the next turn, and ends the process when there is none. So it can sit
            in a callback of one long training. Picklable. What it needs of TensorFlow it imports when it is
            called, so that the benchmark's own process stays small.
        environments: variables to add to the environment, one mapping for each process; they are there before
            the process imports anything. The processes measure at the same time.
        cores: for each process the cores that it may use; None for all that the benchmark may.
        freezes: whether its processes are stopped (SIGSTOP) while others are measured. For those that take
            processor time while they wait, as Horovod's do; nothing of theirs may expire meanwhile.
    """

    name: str
    run: Run
    environments: tuple[Mapping[str, str], ...] = ({},)
    cores: tuple[Sequence[int], ...] | None = None
    freezes: bool = False


class Workers:
    """The running processes of one contender.

    Their first measurement is made at once and thrown away: it holds building, tracing and cold caches.

    Args:
        contender: what they measure.
        timeout_seconds: how long each measurement may take, the first one with all that comes before it.

    Raises:
        WorkerError: if a process fails, dies or takes too long in its first measurement.
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
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(contender.run, there, own_cores), daemon=True)
                with _environment(environment):
                    process.start()
                there.close()
                self._processes.append(process)
                self._connections.append(here)
            self._receive()
            self._freeze()
        except BaseException:
            self.stop()
            raise

    def measure(self) -> tuple[float, ...]:
        """Measures once, in all processes at the same time; returns what each found.

        Raises:
            WorkerError: if a process fails, dies or takes too long.
        """
        self._signal(signal.SIGCONT)
        for connection in self._connections:
            # A process that is gone is noticed where its answer is missing, which names the reason.
            with contextlib.suppress(BrokenPipeError):
                connection.send("measure")
        values = self._receive()
        self._freeze()
        return values

    def stop(self) -> None:
        """Ends the processes, by force: they have nothing to save, and some take long to put everything away."""
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
    """A process' life: `run`, until the other end of the connection closes."""
    if sys.platform == "linux":
        # A frozen process would not notice that the benchmark is gone, and stay for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
        if cores is not None:
            # Before TensorFlow is there: threads that exist already would keep the cores they have.
            os.sched_setaffinity(0, cores)

    def report(value: float) -> None:
        connection.send(value)
        connection.recv()

    try:
        run(report)
        connection.send("It returned, instead of measuring again.")
    except (EOFError, ConnectionError, KeyboardInterrupt):
        # The benchmark is over, was interrupted, or has failed: nobody is left to tell.
        return
    except Exception:
        connection.send(traceback.format_exc())


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, `variables` are in this process' environment, which a process started there inherits."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
