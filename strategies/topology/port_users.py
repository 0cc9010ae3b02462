"""The program that uses a TCP port of this machine, for errors about ports in use. Standard library only."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_TABLES = ("net/tcp", "net/tcp6")
_LISTENS = "0A"
_MAX_COMMAND_LENGTH = 120


def find_port_user(port: int, proc: Path = Path("/proc")) -> str | None:
    """Returns the program that listens at a TCP port of this machine, as in "'python train.py' (pid 123)".

    If none listens, it is the program that has a connection at the port. A program of another user, or of another
    container, cannot be seen.

    Args:
        port: the number of the port.
        proc: the folder of the proc file system.

    Returns:
        The command and the process, or None if no program is found.
    """
    for sockets in _sockets_at(port, proc):
        for pid in _processes(proc):
            if any(link in sockets for link in _open_files(proc / pid)):
                return f"{_command(proc / pid)!r} (pid {pid})"
    return None


def _sockets_at(port: int, proc: Path) -> tuple[set[str], set[str]]:
    """Returns the listening and the other sockets at a port, named as in the links of open files."""
    listening: set[str] = set()
    others: set[str] = set()
    for table in _TABLES:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for row in (proc / table).read_text().splitlines()[1:]:
                fields = row.split()
                address, state, inode = fields[1], fields[3], fields[9]
                # Closed connections that the system still lists have inode 0 and belong to no process.
                if int(address.rpartition(":")[2], 16) == port and inode != "0":
                    (listening if state == _LISTENS else others).add(f"socket:[{inode}]")
    return listening, others


def _processes(proc: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted((entry.name for entry in proc.iterdir() if entry.name.isdecimal()), key=int)
    return []


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for file in (process / "fd").iterdir():
            # The file may be closed by now.
            with contextlib.suppress(OSError):
                yield str(file.readlink())


def _command(process: Path) -> str:
    with contextlib.suppress(OSError):
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return command if len(command) <= _MAX_COMMAND_LENGTH else command[:_MAX_COMMAND_LENGTH] + "..."
    return "unknown"
