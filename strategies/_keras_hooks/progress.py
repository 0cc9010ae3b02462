"""The model's method that a process is running, and the report to the other processes when an error ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from strategies.control_plane import Member, Position
from strategies.engine.explained import explained


@contextlib.contextmanager
def called(member: Member, call: str) -> Iterator[None]:
    """Context manager: records that this process runs a method of a model, and reports an error that ends it."""
    before = member.position
    if before.call:
        # A nested call, such as `fit` evaluating.
        member.position = Position(f"{call} inside of {before.call}", before.epoch, 0)
    else:
        member.forget_failure()
        member.preemption.end_if_asked()
        member.position = Position(call)
    try:
        with explained(member):
            yield
    except BaseException as error:
        # The callback that made a nested call may handle its error.
        if not before.call:
            member.note_failure(error)
            member.preemption.drop_saver()
            if isinstance(error, SystemExit):
                member.wait_for_answers(error)
        raise
    finally:
        member.position = before if before.call else replace(member.position, call="", last_call=call)
