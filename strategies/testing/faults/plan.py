"""Faults as plain data: their kind, rank and moment. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

#: The kinds of faults.
Kind = Literal["kill", "terminate", "stop", "slow", "raise", "leave", "full_disk"]
#: The moments at which faults happen, once `step` is reached.
Moment = Literal["start", "tracing", "step", "epoch_end", "save"]

#: The environment variable that passes faults to a program.
VARIABLE = "STRATEGIES_FAULTS"

# These leave the process by an exception, which only its main thread can do.
_BY_EXCEPTION = ("raise", "leave")
_IN_THE_MIDST = ("tracing", "step")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: "kill", "terminate": the process sends SIGKILL or SIGTERM to itself; "stop": SIGSTOP, for `seconds` or
            forever; "slow": it sleeps `seconds` before each step; "raise": a RuntimeError in a callback; "leave":
            ``sys.exit(0)``; "full_disk": a write of the process fails, at the moment "save" only.
        step: the first step, counted over all epochs from 0, at which the fault can happen. A run that resumes from a
            checkpoint continues the count.
        rank: the process in which it happens; None for all.
        at: "start": at the beginning of `fit`; "tracing": in the first step of the process, while Keras traces it;
            "step": during a step, or before it for "raise", "leave" and "slow"; "epoch_end"; "save": while a file is
            written whose path contains "checkpoint".
        seconds: the duration of "stop" and "slow"; for other kinds at "tracing" and "step", the delay after the
            beginning of the step.
        write: at "save", the number, from 1, of the change that the fault replaces: Python makes a folder, or opens a
            file for writing, renames or removes it. Files that HDF5 opens by itself, as it does without a strategy of
            this package, are not counted: see `byte`.
        byte: at "save", the size that no file may exceed from then on: the process dies, or gets an error, at the write
            that would exceed it. For "kill" and "full_disk".

    Example, rank 0 dies while it writes the weights of a checkpoint:

        fault = faults.Fault("kill", step=100, rank=0, at="save", byte=50_000)

    Raises:
        ValueError: a kind, a moment or a number is invalid, or does not fit the others.
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
        """True if it happens while the step runs, not before it."""
        return self.at in _IN_THE_MIDST and self.kind not in (*_BY_EXCEPTION, "slow")

    def __str__(self) -> str:
        who = "all ranks" if self.rank is None else f"rank {self.rank}"
        where = {"save": f"save, byte {self.byte}" if self.byte is not None else f"save, write {self.write}"}
        return f"{self.kind} of {who} at {where.get(self.at, self.at)}, from step {self.step}"


@dataclass(frozen=True)
class Faults:
    """The faults of one run, as an immutable builder.

    Attributes:
        faults: in any order; each happens once, except "slow", which happens at every step until the process ends.
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
        """Returns the environment variable that passes the faults to a program."""
        return {VARIABLE: self.to_json()}

    def to_json(self) -> str:
        """Returns the faults as JSON text."""
        faults = [
            {f.name: value for f in dataclasses.fields(Fault) if (value := getattr(fault, f.name)) != f.default}
            for fault in self.faults
        ]
        return json.dumps({"faults": faults} | ({} if self.record is None else {"record": self.record}))

    @classmethod
    def from_json(cls, text: str) -> Faults:
        """Returns the faults of a text that `to_json` returned.

        Raises:
            ValueError: the text is not of that form.
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
        """Returns the faults in the environment variable; `Faults()` without it."""
        text = (os.environ if environment is None else environment).get(VARIABLE, "")
        return cls.from_json(text) if text.strip() else cls()

    def happened(self) -> dict[int, float]:
        """Returns the times of the recorded faults, in seconds since the epoch, by index; {} without a record."""
        if self.record is None:
            return {}
        return {int(path.name.split("-")[1]): path.stat().st_mtime for path in Path(self.record).glob("fault-*")}


def fail_at(*, kind: Kind, step: int = 0, rank: int | None = None, **details: Any) -> Faults:
    """Returns `Faults` with one fault; `Faults.fail_at` adds more. The arguments are the attributes of `Fault`."""
    return Faults().fail_at(kind=kind, step=step, rank=rank, **details)
