"""Network namespaces of Linux: makes and removes them, finds and ends their processes. Needs root and iproute2."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

# Contains the process id of the test run: runs do not collide, and leftovers of dead runs are recognized.
_PREFIX = "keras-strategies-"
# Files in a folder with the namespace's name here replace files of /etc in the namespace.
_ETC = Path("/etc/netns")
_LIMIT_SECONDS = 60.0


def why_not() -> str | None:
    """Returns the reason why this machine cannot have separate hosts; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "ssh", "ssh-keygen", "sshd", "unshare") if path_of(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}. On Debian: apt-get install iproute2 openssh-server"
    try:
        add("probe", {})
    except RuntimeError as error:
        return str(error)
    remove([name_of("probe")])
    return None


def name_of(role: str) -> str:
    """Returns the name of this test run's namespace for a role."""
    return f"{_PREFIX}{os.getpid()}-{role}"


def add(role: str, etc: dict[str, str]) -> str:
    """Makes a namespace, with its own versions of some files of /etc; returns its name."""
    name = name_of(role)
    for file, text in etc.items():
        (_ETC / name).mkdir(parents=True, exist_ok=True)
        (_ETC / name / file).write_text(text)
    ip("netns", "add", name)
    return name


def pids(namespace: str) -> list[int]:
    """Returns the ids of the processes in a namespace."""
    return [int(pid) for pid in ip("netns", "pids", namespace).split()]


def signal_all(namespace: str, signum: int) -> None:
    """Sends a signal to all processes in a namespace, and to processes that they start meanwhile."""
    reached: set[int] = set()
    while left := set(pids(namespace)) - reached:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        reached |= left


def kill_all(namespace: str) -> None:
    """Kills all processes in a namespace; returns when there are none."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while left := pids(namespace):
        if time.monotonic() > deadline:
            raise RuntimeError(f"These processes in {namespace} are not killed: {left}.")
        signal_all(namespace, signal.SIGKILL)
        time.sleep(0.02)


def remove(namespaces: Iterable[str]) -> None:
    """Removes existing namespaces, and kills their processes."""
    present = _present()
    for namespace in namespaces:
        if namespace in present:
            kill_all(namespace)
            ip("netns", "delete", namespace)
        shutil.rmtree(_ETC / namespace, ignore_errors=True)
    # The folder stays if it contains anything else.
    with contextlib.suppress(OSError):
        _ETC.rmdir()


def remove_those_of_dead_runs() -> None:
    """Removes namespaces left by killed test runs."""
    names = _present() | {path.name for path in _ETC.glob(f"{_PREFIX}*")}
    ours = {name: int(name.removeprefix(_PREFIX).partition("-")[0]) for name in names if name.startswith(_PREFIX)}
    remove([name for name, pid in ours.items() if not psutil.pid_exists(pid)])


def ip(*words: str) -> str:
    """Runs `ip` and returns its output.

    Raises:
        RuntimeError: it fails.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`ip {shlex.join(words)}` fails: {done.stderr.strip()}")
    return done.stdout


def path_of(program: str) -> str | None:
    """Returns the path of a program; also searches where sshd is, which is often not on a user's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _present() -> set[str]:
    return {line.split()[0] for line in ip("netns", "list").splitlines()}
