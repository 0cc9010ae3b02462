"""The table of faults in the documentation, as the tests observed them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.measured import measured_today

_FAULTS = {
    "absent": "a rank ends before it joins",
    "late": "a rank comes 4 s late",
    "width": "a layer of another width",
    "layers": "one layer more",
    "clipnorm": "another clipnorm",
    "batch size": "another batch size",
    "dtype policy": "another dtype policy",
    "leave at once": "`os._exit(0)` in the middle of an epoch",
    "sleep": "a rank that sleeps in a callback",
    "evaluate": "`evaluate` on one rank only, in the middle of an epoch",
    "stop training": "`stop_training` on one rank only, in the middle of an epoch",
    "kill": "SIGKILL",
    "terminate": "SIGTERM",
    "stop": "SIGSTOP for good",
    "leave": "`sys.exit(0)`",
    "raise": "an exception",
    "full_disk": "a full disk",
}
_MOMENTS = {
    "start": "before the first step",
    "tracing": "while the first step is traced",
    "step": "in the midst of a step",
    "epoch_end": "at the end of an epoch",
    "save": "in a checkpoint",
}
_ENGINES = {"MultiWorkerMirroredStrategy": "TensorFlow, by our launcher", "HorovodStrategy": "Horovod, by horovodrun"}
_MOST_CHARACTERS = 330


@dataclass(frozen=True)
class Row:
    """A fault and its outcome.

    Attributes:
        fault: its name in the tests.
        at: the moment of an injected fault.
        engine: the strategy.
        seconds: from the fault to the end of the last process; None if the job goes on.
        code: the exit code of the launcher, or of horovodrun.
        words: the line that gives the reason.
        saves: True if the program has `keras_ext.Checkpoints`.
        byte: for a full disk, the size beyond which a file cannot grow.
    """

    fault: str
    at: str | None
    engine: str
    seconds: float | None
    code: int
    words: str
    saves: bool = False
    byte: int | None = None

    def __str__(self) -> str:
        at = _MOMENTS[self.at] if self.at else ""
        if self.saves and self.at != "save":
            at += ", with `keras_ext.Checkpoints`"
        at += f", while HDF5 writes (byte {self.byte})" if self.byte else ""
        seconds = "" if self.seconds is None else f"{self.seconds:.1f}"
        words = self.words if len(self.words) <= _MOST_CHARACTERS else f"{self.words[:_MOST_CHARACTERS].rstrip()} ..."
        words = words.replace("|", "\\|").replace("<", "&lt;")
        return f"| {_FAULTS[self.fault]} | {at} | {_ENGINES[self.engine]} | {seconds} | {self.code} | {words} |"


def written(rows: Iterable[Row]) -> str:
    """Returns the page."""
    faults, moments, engines = list(_FAULTS), [None, *_MOMENTS], list(_ENGINES)

    def place(row: Row) -> tuple[int, int, bool, int, int]:
        return faults.index(row.fault), moments.index(row.at), row.saves, row.byte or 0, engines.index(row.engine)

    return "\n".join(
        [
            "# Faults of one rank of two",
            "",
            "Written by `tests/strategies/faults` ([what is found, and by which means](../guides/faults.md)). Two",
            "ranks on one machine of two cores, which other programs use, too; where nothing but a limit can tell,",
            "`timeout_seconds` is 8. Seconds are from the fault to the end of the launcher.",
            "In a checkpoint it is rank 0 to which it happens, which writes; elsewhere rank 1. The checkpoint before",
            "stays whole. GPUs, NCCL and real networks are not measured. [Faults of hosts](host_fault_table.md).",
            measured_today(),
            "",
            "| fault | moment | engine | seconds | exit code | reason |",
            "|---|---|---|---|---|---|",
            *map(str, sorted(rows, key=place)),
            "",
        ]
    )
