"""Runs all cells of readers, in this process and over two processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.processes import Programs, cluster_environments, horovodrun, python
from tests.surface.cells import Outcome
from tests.surface.reader_cells import outcome
from tests.surface.reader_places import IN_PROCESS, Place
from tests.surface.reader_stops import KEEPERS, stopped
from tests.surface.readers import READERS

OVER_PROCESSES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")


def outcomes() -> Iterator[tuple[str, str, Outcome]]:
    """Yields reader, strategy and outcome of all cells of this process, including stops."""
    plain = Place()
    for strategy, mesh in IN_PROCESS.items():
        place = Place.on(mesh)
        for name, reader in READERS.items():
            yield name, strategy, outcome(name, place, plain)
            for keeper in KEEPERS:
                yield f"{name}; {keeper}", strategy, stopped(reader, keeper, place, plain)


def outcomes_over_processes(folder: Path, limit_seconds: float = 3000) -> Iterator[tuple[str, str, Outcome]]:
    """Yields the same over two processes, for each strategy over processes, one job after the other.

    Raises:
        RuntimeError: a cell was wrong, or the job ended before its last cell; earlier cells have been yielded.
    """
    worker = str(Path(__file__).parents[1] / "strategies" / "processes" / "worker.py")
    arguments = [worker, "-ptests.strategies.processes.ranks", "suite_readers.py"]
    for strategy in OVER_PROCESSES:
        shared = folder / strategy / "shared"
        shared.mkdir(parents=True)
        environment = {"SUITE_STRATEGY": strategy, "SUITE_FOLDER": str(shared), "SUITE_READERS": "all"}
        if strategy == "HorovodStrategy":
            programs = Programs(folder / strategy, [horovodrun(2, arguments)], [environment])
        else:
            environments = [environment | each for each in cluster_environments(2)]
            programs = Programs(folder / strategy, [python(*arguments)] * 2, environments)
        with programs:
            codes = programs.wait(limit_seconds)
            output = programs.output()
        for line in (shared / "readers.jsonl").read_text().splitlines():
            cell = json.loads(line)
            yield cell.pop("cell"), strategy, Outcome(**cell)
        if any(codes):
            raise RuntimeError(output)
