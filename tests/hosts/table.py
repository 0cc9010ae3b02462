"""The documentation's table of host faults, as observed by tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.measured import measured_today

_ENGINES = {
    "MultiWorkerMirroredStrategy": "TensorFlow, our launcher on each host",
    "HorovodStrategy": "Horovod, by horovodrun",
}
_FAULTS = {
    "dropped": "is dropped: its processes and its network are gone",
    "cut": "is cut off for good",
    "cut_for_a_while": "is cut off for 5 s",
    "restarted": "has its network down for 5 s",
    "stopped": "has all its processes stopped for good",
    "stopped_for_a_while": "has all its processes stopped for 5 s",
    "started_late": "starts 20 s late",
    "interrupted": "has a Ctrl-C at its launcher",
}
#: Markers of lines that give the reason, the best first.
_TOLD_BY = ("DistributedError", " is gone", "ended by SIGINT")
_MOST_CHARACTERS = 330


@dataclass(frozen=True)
class Line:
    """A fault of a host, and its outcome.

    Attributes:
        fault: its name in the tests.
        engine: the strategy.
        host: the affected host.
        seconds: by host, seconds until no process of the job ran any more; empty if the job continued.
        codes: the exit codes of the launchers on surviving hosts.
        reasons: messages of launchers and ranks about it.
    """

    fault: str
    engine: str
    host: int
    seconds: Mapping[int, float | None]
    codes: Sequence[int | None]
    reasons: Sequence[str]

    def __str__(self) -> str:
        seconds = ", ".join("-" if value is None else f"{value:.1f}" for value in self.seconds.values())
        reason = self._reason() if self.seconds else "goes on, to the weights of one device"
        words = reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS].rstrip()} ..."
        words = words.replace("|", "\\|").replace("<", "&lt;")
        codes = ", ".join(map(str, self.codes))
        return f"| host {self.host} {_FAULTS[self.fault]} | {_ENGINES[self.engine]} | {seconds} | {codes} | {words} |"

    def _reason(self) -> str:
        """Returns the message of a rank, or else of a launcher, without their names."""
        found = [next((line for line in self.reasons if word in line), "") for word in _TOLD_BY]
        return re.sub(
            r"^(\[\d\](<stderr>:| ))?strategies\.(launch|DistributedError): ", "", next(filter(None, found), "")
        )


def written(lines: Iterable[Line], timeout_seconds: float) -> str:
    """Returns the page."""
    order = list(_FAULTS), list(_ENGINES)
    ordered = sorted(lines, key=lambda line: (order[0].index(line.fault), line.host, order[1].index(line.engine)))
    return "\n".join(
        [
            "# Faults of one host of two",
            "",
            "Written by `tests/hosts` ([what is found, and by which means](../guides/faults.md);",
            "[faults of ranks](fault_table.md)). The hosts are network namespaces of one machine with two cores, one",
            "rank on each; the fault comes in the midst of `fit`. Where the job has to end, `timeout_seconds` is",
            f"{timeout_seconds:g}; `--node-timeout` is its default, 30. Seconds are until nothing of the job runs any",
            "more, on each host that lives; where host 0 is gone, so is horovodrun, with its exit code. Real networks",
            f"are not measured. {measured_today()}",
            "",
            "| fault | engine | seconds | exit codes | reason |",
            "|---|---|---|---|---|",
            *map(str, ordered),
            "",
        ]
    )
