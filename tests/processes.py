"""Starts programs of several processes, and ends what it started."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests import forked

ROOT = Path(__file__).parents[1]
#: What programs of tests inherit beside this process' own variables.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def python(*arguments: str) -> list[str]:
    """The command that runs ``python`` with arguments, by a process that need not import TensorFlow and Keras.

    For programs that end by themselves, and whose process nobody looks for: it is a child of the server.
    """
    return [sys.executable, "-I", "-S", *_forked(arguments)]


def launcher(num_processes: int, program: Sequence[str]) -> list[str]:
    """The command that runs `program` (a Python file and its arguments) by `num_processes` under our launcher."""
    return [sys.executable, "-m", "strategies.launch", "--nproc-per-node", str(num_processes), *_forked(program)]


def _forked(program: Sequence[str]) -> list[str]:
    _start_fork_server()
    return [str(Path(forked.__file__)), *program]


@functools.cache
def _start_fork_server() -> subprocess.Popen[bytes]:
    """Starts the server that forks, which ends with this process; returns once it can be connected to."""
    path = str(Path(tempfile.mkdtemp(prefix="forks"), "socket"))
    environment = {**os.environ, **ENVIRONMENT}
    Path(path + ".environment").write_text(json.dumps(forked.read_at_import(environment)))
    command = [sys.executable, "-m", "tests.fork_server", path]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    while not Path(path).exists():
        if server.poll() is not None:
            raise OSError(f"{command} ended with {server.returncode}")
        time.sleep(0.05)
    os.environ[forked.SERVER] = path
    return server


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago, and that nothing else in the test run will take.

    Below the ephemeral ports, which go to outgoing connections, and above those that the launcher draws from; each of
    pytest's workers has a range of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    mine = range(29000 + 300 * worker, 29300 + 300 * worker)
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in random.SystemRandom().sample(mine, len(mine)):
            if len(ports) == count:
                return ports
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("", port)))
                ports.append(port)
    raise OSError(f"fewer than {count} free ports in {mine}")


def cluster_environments(num_processes: int) -> list[dict[str, str]]:
    """TF_CONFIG for each of `num_processes` on this machine."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(num_processes)]
    configs = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": r}} for r in range(num_processes)]
    return [{"TF_CONFIG": json.dumps(config)} for config in configs]


def horovodrun(num_processes: int, program: Sequence[str]) -> list[str]:
    """The command that runs `program` (a Python file and its arguments) by `num_processes` on this machine."""
    command = [str(Path(sys.executable).parent / "horovodrun"), "-np", str(num_processes), "--disable-cache"]
    return [*command, "--network-interfaces", "lo", *python(*program)]


def marked(variable: str, mark: str) -> list[psutil.Process]:
    """Returns the processes in whose environment a variable has a value, as those of a job that was started with it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def marked_after(variable: str, mark: str, seconds: float) -> list[psutil.Process]:
    """Returns those that are still there after some seconds, or, at once, that there are none."""
    deadline = time.monotonic() + seconds
    while (found := marked(variable, mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


class Programs:
    """Programs that run at the same time; leaving the context ends them and all that they started.

    Args:
        folder: gets one log file per program.
        commands: what to run.
        environments: per program, variables beside this process' own.
    """

    def __init__(
        self, folder: Path, commands: Sequence[Sequence[str]], environments: Sequence[dict[str, str]] | None = None
    ) -> None:
        self._logs = [folder / f"log{i}" for i in range(len(commands))]
        self._commands = commands
        self._environments = environments or [{}] * len(commands)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Programs:
        for command, environment, log in zip(self._commands, self._environments, self._logs, strict=True):
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **ENVIRONMENT, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        # Found before any is ended: who has lost its parent is not found any more.
        family = []
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                family += [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        for process in self._processes:
            process.wait()

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self._processes]

    def running(self) -> bool:
        """True if all programs still run."""
        return all(process.poll() is None for process in self._processes)

    def wait(self, timeout_seconds: float) -> list[int | None]:
        """Waits until all have ended, or one has failed; returns exit codes, None for those that run on."""
        end = time.monotonic() + timeout_seconds
        while time.monotonic() < end:
            codes = [process.poll() for process in self._processes]
            if None not in codes or any(codes):
                break
            time.sleep(0.1)
        return [process.poll() for process in self._processes]

    def output(self, limit: int = 6000) -> str:
        """Returns the end of each program's output, `limit` characters at most."""
        texts = [log.read_text(errors="replace")[-limit:] for log in self._logs]
        return "\n".join(f"--- program {i} ---\n{text}" for i, text in enumerate(texts))
