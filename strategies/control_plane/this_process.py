"""The membership of this process in its job. A process joins once, for its lifetime."""

from __future__ import annotations

import sys
from collections.abc import Callable

from strategies.control_plane.member import Member

_member: Member | None = None


def current() -> Member | None:
    """Returns this process as a member of its job; None if it has not joined one."""
    return _member


def joined(join: Callable[[], Member | None]) -> Member | None:
    """Returns this process as a member of its job, which it joins if it has not yet.

    Args:
        join: joins the other processes; returns None if it cannot.
    """
    global _member
    if _member is None:
        _member = join()
    return _member


def log(line: str) -> None:
    """Prints a message of this package on stderr, without buffering."""
    print(f"strategies: {line}", file=sys.stderr, flush=True)
