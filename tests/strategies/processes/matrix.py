"""The parity matrix of meshes whose replicas span processes: the meshes, and the page with the results.

    python -m tests.strategies.processes.matrix docs/numbers/parity_matrix.md
    python -m tests.strategies.processes.matrix docs/numbers/parity_matrix.md HorovodStrategy 4x1

runs all meshes over both engines, which takes hours on two cores, or those of one engine and one number of processes
and devices. Rows of the page that are not run again stay.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.measured import measured_today
from tests.processes import Programs, cluster_environments, horovodrun, python

ENGINES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")
#: Numbers of processes, and of devices of each.
WORLDS = ((2, 1), (4, 1), (8, 1), (2, 2), (4, 2))
MODELS = ("mlp", "resnet", "gpt")
LIMIT_SECONDS = 3600
WORKER = str(Path(__file__).with_name("worker.py"))

_HEAD = [
    "# Parity of replicas that span processes",
    "",
    "Largest difference from plain Keras on one device, relative above 1: of all weights, optimizer slots, logs of",
    "each batch and epoch, and on fewer than eight devices evaluation and predictions, after 3 epochs of `fit` with",
    "Adam and `global_clipnorm`, in float32. All ranks have the same bits. Written by",
    "`python -m tests.strategies.processes.matrix`.",
    measured_today(),
    "",
]


def meshes(num_ranks: int, num_local: int) -> list[dict[str, int]]:
    """Returns the meshes over that many devices in which a replica spans processes."""
    found = []
    for sizes in itertools.product((1, 2, 4, 8), repeat=3):
        data, pipe, tensor = sizes
        if data * pipe * tensor == num_ranks * num_local and pipe * tensor > num_local:
            named = zip(("data", "pipe", "tensor"), sizes, strict=True)
            found.append({name: size for name, size in named if size > 1})
    return found


def chosen_meshes(num_ranks: int, num_local: int, chosen: str | None) -> list[dict[str, int]]:
    """Returns the meshes in `chosen` (JSON from an environment variable), or all meshes if it is empty."""
    return meshes(num_ranks, num_local) if not chosen else list(json.loads(chosen))


def started(
    engine: str,
    num_ranks: int,
    num_local: int,
    folder: Path,
    chosen: Sequence[Mapping[str, int]] = (),
    options: Sequence[str] = (),
    suite: str = "spanning.py",
) -> Programs:
    """Returns the programs that run the meshes, not started yet; rows are appended to ``rows.jsonl`` in `folder`."""
    environment = {
        "SUITE_STRATEGY": engine,
        "SUITE_FOLDER": str(folder / "shared by ranks"),
        "SUITE_RANKS": str(num_ranks),
        "SUITE_DEVICES": str(num_local),
        "SUITE_ROWS": str(folder / "rows.jsonl"),
        "SUITE_MESHES": json.dumps(list(chosen)) if chosen else "",
        # The meshes run one after the other in the same processes.
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    }
    program = [WORKER, suite, *options]
    if engine == "HorovodStrategy":
        return Programs(folder, [horovodrun(num_ranks, program)], [environment])
    own = [environment | each for each in cluster_environments(num_ranks)]
    return Programs(folder, [python(*program)] * num_ranks, own)


def assert_suite_passes(programs: Programs, num_ranks: int, limit_seconds: float) -> None:
    """Runs programs that are not started yet to their end; each runs a suite on one or more ranks."""
    with programs:
        codes = programs.wait(limit_seconds)
        output = programs.output(limit=20000)
    assert all(code == 0 for code in codes), output
    assert output.count(" passed") >= num_ranks, output


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the matrix as Markdown; of several rows for the same cell, the last one counts."""
    found = {(*_line_of(row), row["model"]): row["largest"] for row in rows}
    lines = [*_HEAD, "| engine | processes x devices | mesh | " + " | ".join(MODELS) + " |", "|---" * 6 + "|"]
    engines = {engine: place for place, engine in enumerate(ENGINES)}
    for line in sorted(dict.fromkeys(key[:3] for key in found), key=lambda line: (engines.get(line[0], 9), line[1])):
        cells = [found.get((*line, model)) for model in MODELS]
        lines.append("| " + " | ".join([*line, *("" if each is None else f"{each:.1e}" for each in cells)]) + " |")
    return "\n".join(lines) + "\n"


def rows_of(text: str) -> list[dict[str, Any]]:
    """Returns the rows of a page."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 + len(MODELS) and cells[1][:1].isdigit():
            sizes = [int(size) for size in cells[1].split(" x ")]
            axes = {name: int(size) for name, size in (each.split(": ") for each in cells[2].split(", "))}
            own = {"engine": cells[0], "ranks": sizes[0], "devices": sizes[1], "axes": axes}
            measured = zip(MODELS, cells[3:], strict=True)
            found += [own | {"model": model, "largest": float(value)} for model, value in measured if value]
    return found


def _line_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    axes = ", ".join(f"{name}: {size}" for name, size in row["axes"].items())
    return row["engine"], f"{row['ranks']} x {row['devices']}", axes


def main(path: Path, engine: str | None = None, world: str | None = None) -> None:
    """Runs the chosen meshes, and writes the page after each number of processes."""
    rows = rows_of(path.read_text()) if path.exists() else []
    for each, (num_ranks, num_local) in itertools.product(ENGINES, WORLDS):
        if engine not in (None, each) or world not in (None, f"{num_ranks}x{num_local}"):
            continue
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            # A failed test fails on all ranks together, so the next one can run.
            with started(each, num_ranks, num_local, folder, options=["--maxfail=1000"]) as programs:
                codes = programs.wait(LIMIT_SECONDS)
                if any(codes):
                    output = programs.output(limit=2000)
                    print(f"{each} on {num_ranks} x {num_local}: {codes}\n{output}", file=sys.stderr)
            if (folder / "rows.jsonl").exists():
                rows += [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
        path.write_text(page(rows))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main(Path(sys.argv[1]), *sys.argv[2:])
