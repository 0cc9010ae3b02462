"""The job of which this process is a member, as long as it lives: a process joins once."""

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
        join: joins the other processes; returns None where there is no way to.
    """
    global _member
    if _member is None:
        _member = join()
    return _member


def say(line: str) -> None:
    """Prints a line of this package for the user, at once."""
    print(f"strategies: {line}", file=sys.stderr, flush=True)
