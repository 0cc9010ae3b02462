"""The method of a model that a process is in, told to the others when an error ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from strategies.control_plane import Member, Position
from strategies.engine.explained import explained


@contextlib.contextmanager
def called(member: Member, call: str) -> Iterator[None]:
    """Inside, this process is in a method of a model; what ends it is told to the others."""
    before = member.position
    if before.call:
        # Of `fit`, which evaluates.
        member.position = Position(f"{call} inside of {before.call}", before.epoch, 0)
    else:
        member.forget_failure()
        member.preemption.end_if_asked()
        member.position = Position(call)
    try:
        with explained(member):
            yield
    except BaseException as error:
        # An error of a nested call may be handled by the callback that made it.
        if not before.call:
            member.note_failure(error)
            member.preemption.drop_saver()
            if isinstance(error, SystemExit):
                member.leave_no_stopped(error)
        raise
    finally:
        member.position = before if before.call else replace(member.position, call="", last_call=call)
