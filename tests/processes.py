"""Starts programs of several processes, and ends them."""

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
#: Variables that tests' programs get besides this process' own.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def python(*arguments: str) -> list[str]:
    """Returns the command that runs ``python`` with arguments, in a process that need not import TensorFlow and Keras.

    For programs that end by themselves, and whose process id is not needed: the process is a child of the server.
    """
    return [sys.executable, "-I", "-S", *_forked(arguments)]


def launcher(num_processes: int, program: Sequence[str]) -> list[str]:
    """Returns the command that runs `program` (a Python file and its arguments) in `num_processes` by our launcher."""
    return [sys.executable, "-m", "strategies.launch", "--nproc-per-node", str(num_processes), *_forked(program)]


def _forked(program: Sequence[str]) -> list[str]:
    _start_fork_server()
    return [str(Path(forked.__file__)), *program]


@functools.cache
def _start_fork_server() -> subprocess.Popen[bytes]:
    """Starts the fork server, which ends with this process; returns once it accepts connections."""
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
    """Returns ports on which nobody listened a moment ago, and that nothing else in the test run will take.

    They are below the ephemeral ports, used for outgoing connections, and above the launcher's; each of pytest's
    workers has its own range.
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
    """Returns TF_CONFIG for each of `num_processes` on this machine."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(num_processes)]
    configs = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": r}} for r in range(num_processes)]
    return [{"TF_CONFIG": json.dumps(config)} for config in configs]


def horovodrun(num_processes: int, program: Sequence[str], *, in_one_family: bool = False) -> list[str]:
    """Returns the command that runs `program` (a Python file and its arguments) in `num_processes` by horovodrun.

    It imports TensorFlow twice to see how Horovod was built, so it is forked, too, and the command's process is not the
    parent of the ranks, unless `in_one_family` asks for that.
    """
    script = str(Path(sys.executable).parent / "horovodrun")
    options = ["-np", str(num_processes), "--disable-cache", "--network-interfaces", "lo", *python(*program)]
    return [script, *options] if in_one_family else python(script, *options)


def marked(variable: str, mark: str) -> list[psutil.Process]:
    """Returns the processes in whose environment `variable` is `mark`, such as those of a job started with it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def marked_after(variable: str, mark: str, seconds: float) -> list[psutil.Process]:
    """Returns the marked processes that still exist after `seconds`; returns at once when there are none."""
    deadline = time.monotonic() + seconds
    while (found := marked(variable, mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


class Programs:
    """Programs that run at the same time; leaving the context kills them and everything that they started.

    Args:
        folder: gets one log file per program.
        commands: one command per program.
        environments: per program, variables besides this process' own.
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
        # Collected before any is killed: orphans can no longer be found.
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
        """The process ids of the programs."""
        return [process.pid for process in self._processes]

    def running(self) -> bool:
        """Returns True if all programs still run."""
        return all(process.poll() is None for process in self._processes)

    def wait(self, timeout_seconds: float) -> list[int | None]:
        """Waits until all have ended or one has failed; returns exit codes, None for programs that still run."""
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
