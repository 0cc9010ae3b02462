"""The parity matrix of meshes whose replicas span processes: the meshes, and the page that shows what was found.

    python -m tests.strategies.processes.matrix docs/parity_matrix.md

runs all of them, over both engines, which takes an hour on two cores.
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

from tests.processes import Programs, cluster_environments, horovodrun

ENGINES = ("MultiWorkerMirroredStrategy", "HorovodStrategy")
#: Numbers of processes, and of devices of each.
WORLDS = ((2, 1), (4, 1), (8, 1), (2, 2), (4, 2))
LIMIT_SECONDS = 3600
WORKER = str(Path(__file__).with_name("worker.py"))


def meshes(num_ranks: int, num_local: int) -> list[dict[str, int]]:
    """Returns the meshes over so many devices in which a replica spans processes."""
    found = []
    for sizes in itertools.product((1, 2, 4, 8), repeat=3):
        data, pipe, tensor = sizes
        if data * pipe * tensor == num_ranks * num_local and pipe * tensor > num_local:
            named = zip(("data", "pipe", "tensor"), sizes, strict=True)
            found.append({name: size for name, size in named if size > 1})
    return found


def chosen_meshes(num_ranks: int, num_local: int, chosen: str | None) -> list[dict[str, int]]:
    """Returns those that an environment variable names, as JSON; all without one."""
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
    """Returns the programs that try the meshes, not started yet; rows are appended to ``rows.jsonl`` in `folder`."""
    environment = {
        "SUITE_STRATEGY": engine,
        "SUITE_RANKS": str(num_ranks),
        "SUITE_DEVICES": str(num_local),
        "SUITE_ROWS": str(folder / "rows.jsonl"),
        "SUITE_MESHES": json.dumps(list(chosen)) if chosen else "",
        # One after the other in the same processes.
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    }
    program = [WORKER, suite, *options]
    if engine == "HorovodStrategy":
        return Programs(folder, [horovodrun(num_ranks, program)], [environment])
    own = [environment | each for each in cluster_environments(num_ranks)]
    return Programs(folder, [[sys.executable, *program]] * num_ranks, own)


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the matrix as Markdown."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    found = {(row["engine"], row["ranks"], row["devices"], str(row["axes"]), row["model"]): row for row in rows}
    lines = [
        "# Parity of replicas that span processes",
        "",
        "Largest difference from plain Keras on one device, relative above 1: of all weights, optimizer slots, logs of",
        "each batch and epoch, evaluation and predictions, after 3 epochs of `fit` with Adam and `global_clipnorm`, in",
        "float32. All ranks have the same bits. Written by `python -m tests.strategies.processes.matrix`.",
        "",
        "| engine | processes x devices | mesh | " + " | ".join(models) + " |",
        "|---|---|---|" + "---|" * len(models),
    ]
    for engine, ranks, devices, axes in dict.fromkeys(key[:4] for key in found):
        cells = [found.get((engine, ranks, devices, axes, model)) for model in models]
        shown = " | ".join("" if cell is None else f"{cell['largest']:.1e}" for cell in cells)
        lines.append(f"| {engine} | {ranks} x {devices} | {axes.strip('{}').replace(chr(39), '')} | {shown} |")
    return "\n".join(lines) + "\n"


def main(path: Path) -> None:
    """Runs everything, and writes the page."""
    rows: list[dict[str, Any]] = []
    for engine, (num_ranks, num_local) in itertools.product(ENGINES, WORLDS):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            with started(engine, num_ranks, num_local, folder) as programs:
                codes = programs.wait(LIMIT_SECONDS)
                if any(codes):
                    print(f"{engine} on {num_ranks} x {num_local}: {codes}\n{programs.output()}", file=sys.stderr)
            if (folder / "rows.jsonl").exists():
                rows += [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
        path.write_text(page(rows))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main(Path(sys.argv[1]))
