"""A contender in processes of its own, which live as long as the benchmark and measure when they are told to.

A process each, because what one contender does to TensorFlow, Keras or the memory of a process must not be felt by
another. Processes that live on, because contenders are measured in turn, many times, and start up only once. A
process that is not measuring waits for a message and takes no processor time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

STOP_TIMEOUT_SECONDS = 10


class WorkerError(RuntimeError):
    """A contender could not be measured; the message says which one and why."""


@dataclass(frozen=True)
class Contender:
    """Something to measure.

    Args:
        name: its row in the tables.
        build: called once in each process; returns what measures once. Picklable. What it needs of
            TensorFlow it imports when it is called, so that the benchmark's own process stays small.
        environments: variables to add to the environment, one mapping for each process; they are there before
            the process imports anything. The processes measure at the same time.
    """

    name: str
    build: Callable[[], Callable[[], float]]
    environments: tuple[Mapping[str, str], ...] = ({},)


class Workers:
    """The running processes of one contender.

    Args:
        contender: what they measure.
        timeout_seconds: how long building, and each measurement, may take.

    Raises:
        WorkerError: if a process fails or dies while it builds, or takes too long.
    """

    def __init__(self, contender: Contender, timeout_seconds: float) -> None:
        self._name = contender.name
        self._timeout_seconds = timeout_seconds
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        # Not fork: TensorFlow does not survive it.
        context = multiprocessing.get_context("spawn")
        try:
            for environment in contender.environments:
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(contender.build, there), daemon=True)
                with _environment(environment):
                    process.start()
                there.close()
                self._processes.append(process)
                self._connections.append(here)
            self._receive()
        except BaseException:
            self.stop()
            raise

    def measure(self) -> tuple[float, ...]:
        """Measures once, in all processes at the same time; returns what each found.

        Raises:
            WorkerError: if a process fails, dies or takes too long.
        """
        for connection in self._connections:
            # A process that is gone is noticed where its answer is missing, which names the reason.
            with contextlib.suppress(BrokenPipeError):
                connection.send("measure")
        return self._receive()

    def stop(self) -> None:
        """Ends the processes, if need be by force."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(STOP_TIMEOUT_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()

    def _receive(self) -> tuple[float, ...]:
        values = []
        for index, (process, connection) in enumerate(zip(self._processes, self._connections, strict=True)):
            who = f"Contender {self._name!r}, process {index} of {len(self._processes)}"
            if not connection.poll(self._timeout_seconds):
                raise WorkerError(f"{who}: no answer for {self._timeout_seconds} s. Allow it more time, or less work.")
            try:
                answer = connection.recv()
            except (EOFError, ConnectionResetError) as error:
                process.join(STOP_TIMEOUT_SECONDS)
                raise WorkerError(f"{who}: ended by itself, exit code {process.exitcode}.") from error
            if isinstance(answer, str):
                raise WorkerError(f"{who}: failed.\n{answer}")
            values.append(float(answer))
        return tuple(values)


def _serve(build: Callable[[], Callable[[], float]], connection: Connection) -> None:
    """A process' life: build, say so with a 0, then measure for every message, until the other end closes."""
    # The benchmark was interrupted or has failed when the other end is closed: nobody is left to tell.
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        try:
            measure = build()
            connection.send(0.0)
            while connection.recv():
                connection.send(measure())
        except (EOFError, OSError, KeyboardInterrupt):
            raise
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
