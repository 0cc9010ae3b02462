"""The common parts of the benchmarks' programs: flags, start, available contenders, tables.

A program's own process does not start TensorFlow: this module imports the standard library and absl only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from absl import app, flags, logging

from harness import ratios

_REPOSITORY = Path(__file__).resolve().parents[2]

# The flags below count as key flags of the calling program, so that its --helpshort shows them.
flags.disclaim_key_flags()


class Kind(Protocol):
    """One kind of contender."""

    @property
    def requires(self) -> str:
        """The distribution to be installed besides ours."""


def define_contenders(names: Iterable[str], help_text: str = "What to measure; repeatable.") -> None:
    """Defines --contender, which takes any of `names`, by default all."""
    flags.DEFINE_multi_enum("contender", list(names), list(names), help_text)


def define_processes() -> None:
    """Defines --processes."""
    text = "Processes of each contender, with one core and one thread each."
    flags.DEFINE_integer("processes", 2, text, lower_bound=2)


def define_timeout(seconds: float = 600) -> None:
    """Defines --timeout_seconds."""
    text = "How long a contender may take to start, and for one measurement."
    flags.DEFINE_float("timeout_seconds", seconds, text, lower_bound=1)


def run(main: Callable[[], None]) -> None:
    """Runs `main` with parsed flags, in the common environment of all processes of a benchmark; then exits."""

    def start(argv: Sequence[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Only flags are understood, received {argv[1:]}.")
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.INFO)
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        # Benchmarks measure cores; a GPU would change what is compiled.
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        # In a clone with nothing installed, use the clone's library. An installed one takes precedence: it is the one
        # that the user means to run, and the clone may be of another version.
        if importlib.util.find_spec("strategies") is None:
            sys.path.append(str(_REPOSITORY))
        main()

    app.run(start)


def installed(names: Iterable[str], kinds: Mapping[str, Kind]) -> list[str]:
    """Returns the contenders whose libraries are installed, each once; prints a line for each of the others."""
    found = []
    for name in dict.fromkeys(names):
        if importlib.util.find_spec(kinds[name].requires) is None:
            print(f"Left out: {name}; {kinds[name].requires} is not installed.")
        else:
            found.append(name)
    return found


def print_tables(
    title: str,
    comparisons: Iterable[ratios.Comparison],
    measured: Mapping[str, Sequence[float]],
    unit: str,
    derived: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Prints a section: the table of the ratios, then that of the measurements.

    Args:
        title: title of the section.
        comparisons: the rows of the first table.
        measured: the measurements by row; all of them are in the second table.
        unit: unit of the measurements.
        derived: more values by row, computed from the measurements, to which comparisons may refer.
    """
    print(
        f"\n## {title}\n\n"
        f"{ratios.ratio_table(comparisons, {**measured, **(derived or {})})}\n\n"
        f"{ratios.value_table(measured, unit)}",
        flush=True,
    )
