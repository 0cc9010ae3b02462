"""The process that holds a port, according to the system, and to a fake copy of /proc."""

import os
import socket
import sys
from pathlib import Path

import pytest

from strategies.topology.port_users import find_port_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_this_process(family: socket.AddressFamily) -> None:
    with socket.create_server(("", 0), family=family) as listener:
        user = find_port_user(listener.getsockname()[1])
    assert user is not None
    assert f"(pid {os.getpid()})" in user
    # Under pytest-xdist the command is not pytest.
    assert Path(sys.executable).name in user


def test_a_free_port_has_none() -> None:
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
    assert find_port_user(port) is None


ROW = "  0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 1\n"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(29500, "01", 5), (29500, "0A", 6)], "'python train.py' (pid 20)"),
        ([(29500, "01", 5)], "'other' (pid 3)"),
        ([(29501, "0A", 6)], None),
        ([(29500, "06", 0)], None),
        ([(29500, "0A", 7)], None),
        ([], None),
    ],
)
def test_who_listens_comes_before_who_is_connected(
    rows: list[tuple[int, str, int]], expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / "net").mkdir()
    table = "".join(ROW.format(port=port, state=state, inode=inode) for port, state, inode in rows)
    (tmp_path / "net" / "tcp").write_text("  sl  local_address ...\n" + table)
    for pid, inode, command in ((3, 5, b"other\0"), (20, 6, b"python\0train.py\0")):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "fd" / "9").symlink_to(f"socket:[{inode}]")
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
    assert find_port_user(29500, tmp_path) == expected


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert find_port_user(29500, tmp_path / "none") is None
