"""The records of all ranks, as one trace. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from strategies.atomic_file import atomic_file
from strategies.tracing import chrome, picture, summaries
from strategies.tracing.alignment import aligned
from strategies.tracing.collective_runs import collective_runs
from strategies.tracing.events import RankRecord


@dataclass(frozen=True)
class JobTrace:
    """Some steps of all ranks of a job, on the clock of rank 0. Prints as a summary.

    Attributes:
        records: the records of the ranks, by rank.

    Raises:
        ValueError: no record, two records of one rank, or records of jobs of different sizes.
    """

    records: tuple[RankRecord, ...] = field(repr=False)

    def __post_init__(self) -> None:
        ranks = [record.rank for record in self.records]
        sizes = sorted({record.world_size for record in self.records})
        if not ranks or len(set(ranks)) < len(ranks) or len(sizes) > 1:
            raise ValueError(
                "A trace needs one record of each rank of one job. Received: records of ranks "
                f"{ranks}, of jobs of {sizes} ranks."
            )

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> JobTrace:
        """Returns the trace of the texts of ranks, in any order, brought to one clock; see `RankRecord.to_text`."""
        return cls(aligned(map(RankRecord.from_text, texts)))

    def to_json(self) -> str:
        """Returns the trace as text that Perfetto (ui.perfetto.dev) and Chrome's ``about:tracing`` open."""
        about = {
            "ranks": self.records[0].world_size,
            "ranks recorded": len(self.records),
            "clock": "rank 0",
            "largest clock error, ms": max(record.clock_error for record in self.records) / 1e6,
            "events left out": sum(record.num_dropped for record in self.records),
            "summary": self.summary().splitlines(),
        }
        events = chrome.trace_events(self.records, collective_runs(self.records))
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, separators=(",", ":"))

    def summary(self) -> str:
        """Returns a few lines: each rank's computing and waiting, and who came last to collectives."""
        return "\n".join(summaries.lines(self.records, collective_runs(self.records)))

    def svg(self, title: str = "One step of all ranks") -> str:
        """Returns an SVG picture of the last step, for a few ranks and a small model; Perfetto shows more.

        Raises:
            ValueError: no step was recorded by all ranks.
        """
        return picture.svg(self.records, title)

    def _repr_svg_(self) -> str | None:
        """Returns the picture, or None without a step of all ranks; Jupyter draws a value by this name."""
        try:
            return self.svg()
        except ValueError:
            return None

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes :meth:`to_json` to a file, completely or not at all; creates missing folders. Returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as part:
            part.write_text(self.to_json(), encoding="utf-8")
        return target

    def __str__(self) -> str:
        return self.summary()
