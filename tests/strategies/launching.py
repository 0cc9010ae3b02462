"""The common parts of the launcher's tests: programs to start, and launchers that end with the test."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

import psutil

from tests.processes import free_ports
from tests.strategies import clocked_launch

LAUNCHER = [sys.executable, "-m", "strategies.launch"]
TIMEOUT_SECONDS = 120
Launcher = TypeVar("Launcher", bound="Running")
# Variables that a test run inherits from another launcher or from a shell must not affect the tests.
OURS = re.compile(
    r"TF_CONFIG|PET_|SM_|CLUSTER_SPEC|TF_NUM_|OMP_NUM_|PYTHONUNBUFFERED|HOROVOD_|OMPI_|(LOCAL_|GROUP_)?RANK|.*WORLD_SIZE|MASTER_|TORCHELASTIC_|STRATEGIES_TRACEBACK_DIR|STRATEGIES_STATUS_"
)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not OURS.match(name)}

# Prints a line to stderr; a test that has read it knows that the process runs.
READY = "import os, signal, sys, time\nprint('ready', os.getpid(), file=sys.stderr)\n"


def written(folder: Path, code: str) -> str:
    """Writes a program with that code to a path with spaces in it; returns the path."""
    path = folder / "a folder" / "the program.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    return str(path)


def launched(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs the launcher to its end. A launcher that exceeds the time limit is killed with its processes."""
    return subprocess.run(
        [*LAUNCHER, *arguments],
        env=ENVIRONMENT | (environment or {}),
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


class Running:
    """A running launcher: its stderr is read line by line, its stdout at the end. It is killed on exit."""

    def __init__(self, *arguments: str) -> None:
        # A launcher that is killed leaves its folder behind.
        self._temporary = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            # A shell without job control starts background commands, perhaps this test run, with SIGINT ignored.
            ["env", "--default-signal=INT", *self._command(), *arguments],
            env=ENVIRONMENT | {"TMPDIR": self._temporary.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self.stderr = b""

    def _command(self) -> list[str]:
        return LAUNCHER

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT_SECONDS)
        self._temporary.cleanup()

    def wait_for(self, word: bytes, count: int = 1) -> list[bytes]:
        """Returns the lines of stderr with `word`, as soon as there are `count`."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            has_ended = self.process.poll() is not None
            self.stderr += self.process.stderr.read() or b""
            found = [line for line in self.stderr.split(b"\n")[:-1] if word in line]
            if len(found) >= count:
                return found
            assert not has_ended, self.stderr
            assert time.monotonic() < deadline, self.stderr
            select.select([self.process.stderr], [], [], 1.0)

    def ready(self, count: int) -> dict[int, int]:
        """Returns process ids by rank, once `count` processes have printed that they are ready."""
        found = (re.fullmatch(rb"\[(\d+)\] ready (\d+)", line) for line in self.wait_for(b"] ready", count))
        return {int(match[1]): int(match[2]) for match in found if match}

    def end(self) -> tuple[int, bytes, bytes]:
        """Waits for the launcher; returns its exit code, stdout and stderr."""
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), True)
        stdout, stderr = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, stdout, self.stderr + stderr


class Clocked(Running):
    """A running launcher whose time passes only by `advance`; see `clocked_launch`."""

    def _command(self) -> list[str]:
        self._seconds, self._num_moves = 0.0, 0
        self._write_time()
        Path(self._temporary.name, clocked_launch.TURNED).touch()
        return [sys.executable, "-m", "tests.strategies.clocked_launch", self._temporary.name]

    def _write_time(self) -> str:
        text = f"{self._seconds} {self._num_moves}"
        path = Path(self._temporary.name, clocked_launch.TIME)
        path.with_suffix(".part").write_text(text)
        path.with_suffix(".part").replace(path)
        return text

    def move(self, seconds: float) -> str:
        """Moves the clock, for the launcher's next turn; returns the new text of the file."""
        self._seconds, self._num_moves = self._seconds + seconds, self._num_moves + 1
        text = self._write_time()
        # The launcher expects this signal, and looks at its processes.
        self.process.send_signal(signal.SIGCHLD)
        return text

    def advance(self, seconds: float) -> None:
        """Moves the clock, and returns when the launcher has done a whole turn with the new time, or has ended.

        By 0 seconds: returns when the launcher has handled everything that had happened before.
        """
        text, turned = self.move(seconds), Path(self._temporary.name, clocked_launch.TURNED)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.process.poll() is None and turned.read_text() != text:
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.002)

    def advance_to_end(self, seconds: float) -> None:
        """Moves the clock in steps of some seconds until the launcher ends."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.stderr
            self.advance(seconds)


def wait_until_gone(pids: Iterable[int]) -> None:
    """Returns when none of the processes runs any more."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    for pid in pids:
        while _runs(pid):
            assert time.monotonic() < deadline, f"{pid} still runs"
            time.sleep(0.02)


def _runs(pid: int) -> bool:
    """True until the parent of the process can see that it has ended.

    A process is a zombie as soon as its main thread has ended, but `waitid` finds it only after its last thread has
    ended: that of the allocator, which tests preload, may take a moment longer.
    """
    try:
        is_zombie = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return not is_zombie or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False


def nodes(path: str, *flags: str, sizes: Sequence[int] = (1, 2)) -> contextlib.AbstractContextManager[list[Running]]:
    """Context manager: the launchers of a job, one for each number of processes."""
    return _nodes(Running, path, flags, sizes)


def clocked_nodes(path: str, *flags: str) -> contextlib.AbstractContextManager[list[Clocked]]:
    """Context manager: two launchers of a job whose time passes only by `advance`."""
    return _nodes(Clocked, path, flags, (1, 2))


@contextlib.contextmanager
def _nodes(kind: type[Launcher], path: str, flags: Sequence[str], sizes: Sequence[int]) -> Iterator[list[Launcher]]:
    [port] = free_ports(1)
    place = ["--nnodes", str(len(sizes)), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    launchers: list[Launcher] = []
    with contextlib.ExitStack() as stack:
        for rank, size in enumerate(sizes):
            own = ["--node-rank", str(rank), "--nproc-per-node", str(size)]
            launchers.append(kind(*own, *place, "--no-pin", *flags, path))
            stack.enter_context(launchers[-1])
        yield launchers


def ready(launchers: Sequence[Running], sizes: Sequence[int] = (1, 2)) -> dict[int, int]:
    """Returns the process ids of all ranks."""
    found = [launcher.ready(size) for launcher, size in zip(launchers, sizes, strict=True)]
    return {rank: pid for pids in found for rank, pid in pids.items()}


def name(rank: int) -> str:
    """Returns the name that the launchers give a node."""
    return f"node {rank} ({socket.gethostname()})"


def last_line(stderr: bytes) -> str:
    """Returns the last line of a launcher, without its prefix."""
    return stderr.decode().splitlines()[-1].removeprefix("strategies.launch: ")
