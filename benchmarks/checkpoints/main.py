"""Measures how long saving a checkpoint stops training, with two processes: `python benchmarks/checkpoints/main.py`."""

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    # Import the benchmark as the package `checkpoints`, and the shared code as `harness`.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, program, rounds

from checkpoints import contenders

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 9, "Measurements of each contender.", lower_bound=1)
flags.DEFINE_integer("megabytes", 400, "Bytes of weights and slots, in MB.", lower_bound=1)
flags.DEFINE_string("folder", None, "Where the checkpoints are written. Default: a temporary folder.")
flags.DEFINE_string("torch_python", None, "A Python that has torch, if this one has not.")
program.define_timeout()


def main() -> None:
    """Measures, and prints the tables to standard output; logs a line per measurement."""
    python = FLAGS.torch_python or (sys.executable if importlib.util.find_spec("torch") else None)
    print(environment.describe(), flush=True)
    print(_described(python), flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(FLAGS.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        selected = contenders.contenders(folder, FLAGS.megabytes, python)
        measured = rounds.measure_in_turn(selected, FLAGS.rounds, FLAGS.timeout_seconds, contenders.combine)
        program.print_tables(
            f"seconds to save {FLAGS.megabytes} MB from two processes, {FLAGS.rounds} rounds",
            contenders.comparisons(has_torch=python is not None),
            measured,
            "seconds",
        )


def _described(python: str | None) -> str:
    if python is None:
        return "Not measured: torch's distributed checkpoints. Pass --torch_python, a Python that has torch."
    try:
        return f"torch {contenders.torch_version(python)}"
    except (OSError, subprocess.CalledProcessError) as error:
        raise app.UsageError(f"--torch_python is to be a Python that has torch. Received: {python}: {error}") from error


if __name__ == "__main__":
    program.run(main)
