"""Faults as plain data: what happens to which rank at which moment. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

#: The deeds of faults.
Kind = Literal["kill", "terminate", "stop", "slow", "raise", "leave", "full_disk"]
#: The moments of faults, once `step` is reached.
Moment = Literal["start", "tracing", "step", "epoch_end", "save"]

#: The variable in which faults travel to a program.
VARIABLE = "STRATEGIES_FAULTS"

# These leave the process by an exception, which only its main thread can do.
_BY_EXCEPTION = ("raise", "leave")
_IN_THE_MIDST = ("tracing", "step")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: "kill" (SIGKILL) and "terminate" (SIGTERM) to itself; "stop" (SIGSTOP), for `seconds` or for good;
            "slow": sleeps `seconds` before each step; "raise": a RuntimeError in a callback; "leave":
            ``sys.exit(0)``; "full_disk": what the process writes fails, at the moment "save" only.
        step: the step, counted over all epochs from 0, from which on the moment is waited for. A run that goes on from
            a checkpoint counts on.
        rank: the process that it happens to; None for all.
        at: "start": at the beginning of `fit`; "tracing": in the first step of the process, while Keras traces it;
            "step": in the midst of a step, for "raise", "leave" and "slow" before it; "epoch_end"; "save": while a
            file is written whose path contains "checkpoint".
        seconds: how long "stop" and "slow" take; for other kinds, how long after the beginning of the step "tracing"
            and "step" strike.
        write: of "save", the change to the folder in whose place it happens, from 1: a folder made, a file opened for
            writing, renamed or removed, by Python. What HDF5 opens by itself, as without a strategy of this package, is
            not counted: see `byte`.
        byte: of "save", the size that no file exceeds any more: the process dies, or gets an error, at the write that
            would. For "kill" and "full_disk".

    Example, rank 0 dies in the midst of writing the weights of a checkpoint:

        fault = faults.Fault("kill", step=100, rank=0, at="save", byte=50_000)

    Raises:
        ValueError: a kind, a moment or a number that does not exist or does not fit the others.
    """

    kind: Kind
    step: int = 0
    rank: int | None = None
    at: Moment = "step"
    seconds: float | None = None
    write: int = 1
    byte: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.at not in get_args(Moment):
            raise ValueError(
                f"kind must be one of {list(get_args(Kind))}, and at one of {list(get_args(Moment))}. "
                f"Received: kind={self.kind!r}, at={self.at!r}."
            )
        for name, value, least in (("step", self.step, 0), ("rank", self.rank, 0), ("write", self.write, 1)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name} must be a whole number from {least}. Received: {name}={value!r}.")
        if self.seconds is not None and self.seconds < 0:
            raise ValueError(f"seconds must not be negative. Received: seconds={self.seconds}.")
        if self.kind == "slow" and (not self.seconds or self.at != "step"):
            raise ValueError(
                "A slow process needs the seconds of each step, and the moment 'step'. Received: "
                f"seconds={self.seconds}, at={self.at!r}."
            )
        if self.kind == "full_disk" and self.at != "save":
            raise ValueError(f"A disk is full where something is written: at='save'. Received: at={self.at!r}.")
        if self.byte is not None and (self.at != "save" or self.kind not in ("kill", "full_disk") or self.byte < 0):
            raise ValueError(
                "byte, from 0, is of the kinds 'kill' and 'full_disk' at='save'. Received: "
                f"byte={self.byte!r}, kind={self.kind!r}, at={self.at!r}."
            )

    @property
    def in_the_midst(self) -> bool:
        """True if it strikes while the step runs, not before it."""
        return self.at in _IN_THE_MIDST and self.kind not in (*_BY_EXCEPTION, "slow")

    def __str__(self) -> str:
        who = "all ranks" if self.rank is None else f"rank {self.rank}"
        where = {"save": f"save, byte {self.byte}" if self.byte is not None else f"save, write {self.write}"}
        return f"{self.kind} of {who} at {where.get(self.at, self.at)}, from step {self.step}"


@dataclass(frozen=True)
class Faults:
    """Faults of one run, as an immutable builder.

    Attributes:
        faults: in any order; each happens once, but "slow" until the process ends.
        record: a folder in which each fault that happened leaves an empty file, so that it does not happen again when
            the same command is run again. None: each happens once per process.

    Example:

        hurt = faults.fail_at(rank=1, step=40, kind="kill").fail_at(rank=0, step=60, kind="full_disk", at="save")
        hurt = hurt.recorded_in("run/faults")
        environment = hurt.environment()  # beside os.environ, for a program that has faults.Injector()
    """

    faults: tuple[Fault, ...] = ()
    record: str | None = None

    def fail_at(self, *, kind: Kind, step: int = 0, rank: int | None = None, **details: Any) -> Faults:
        """Returns these faults and one more; the arguments are the attributes of `Fault`."""
        return dataclasses.replace(self, faults=(*self.faults, Fault(kind, step, rank, **details)))

    def recorded_in(self, folder: str | os.PathLike[str]) -> Faults:
        """Returns the same faults, each of which happens once in all runs that share `folder`."""
        return dataclasses.replace(self, record=os.fspath(folder))

    def environment(self) -> dict[str, str]:
        """Returns the environment variable that carries them to a program."""
        return {VARIABLE: self.to_json()}

    def to_json(self) -> str:
        """Returns them as text."""
        faults = [
            {f.name: value for f in dataclasses.fields(Fault) if (value := getattr(fault, f.name)) != f.default}
            for fault in self.faults
        ]
        return json.dumps({"faults": faults} | ({} if self.record is None else {"record": self.record}))

    @classmethod
    def from_json(cls, text: str) -> Faults:
        """Returns the faults that `to_json` wrote.

        Raises:
            ValueError: text that it did not write.
        """
        try:
            found = json.loads(text)
            return cls(tuple(Fault(**fault) for fault in found["faults"]), found.get("record"))
        except (json.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f'{VARIABLE} must look like {{"faults": [{{"kind": "kill", "rank": 1, "step": 40}}]}} ({error}). '
                f"Received: {text}"
            ) from error

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Faults:
        """Returns the faults in the environment variable; none without it."""
        text = (os.environ if environment is None else environment).get(VARIABLE, "")
        return cls.from_json(text) if text.strip() else cls()

    def happened(self) -> dict[int, float]:
        """Returns when faults happened, in seconds since the epoch, by their index; only those of a record."""
        if self.record is None:
            return {}
        return {int(path.name.split("-")[1]): path.stat().st_mtime for path in Path(self.record).glob("fault-*")}


def fail_at(*, kind: Kind, step: int = 0, rank: int | None = None, **details: Any) -> Faults:
    """Returns one fault, to which others are added by `Faults.fail_at`; the arguments are the attributes of `Fault`."""
    return Faults().fail_at(kind=kind, step=step, rank=rank, **details)
