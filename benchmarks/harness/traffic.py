"""The number of bytes that a process has sent over its TCP connections. Linux only, standard library only."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

# Fields of struct tcp_info in linux/tcp.h, since Linux 4.19: tcpi_bytes_sent, tcpi_bytes_retrans.
_COUNTS = struct.Struct("=QQ")
_OFFSET = 200


def sent_bytes() -> int:
    """Returns the bytes sent over the TCP connections that this process has open; retransmissions are not counted.

    The kernel counts per connection: headers and bytes sent by other processes are not included.

    Raises:
        OSError: the kernel has no such counts.
    """
    return sum(_sent(int(path.name)) for path in Path("/proc/self/fd").iterdir())


def _sent(descriptor: int) -> int:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        # A copy: closing it leaves the original open.
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        # It was the directory listing's own descriptor, or another thread has just closed it.
        return 0
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return 0
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OFFSET + _COUNTS.size)
    if len(info) < _OFFSET + _COUNTS.size:
        raise OSError("This kernel does not count the bytes that TCP connections send.")
    sent, resent = _COUNTS.unpack_from(info, _OFFSET)
    return int(sent - resent)
