"""Measures every backbone on every mesh: ``python -m tests.hub docs/numbers/kerashub_table.md`` writes the table.

Each backbone is measured in its own process. Rows of other backbones in an existing table stay, so that it can be
measured in parts: ``python -m tests.hub docs/numbers/kerashub_table.md --only GPT2Backbone T5Backbone``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

from tests.hub import backbones
from tests.measured import measured_today

_CELLS = ("data=2", "tensor=2", "tensor=4", "pipe=2", "pipe=4", "data=2, tensor=2")
_LIMIT_SECONDS = 1800
_HEAD = """# KerasHub's backbones on meshes

Written by `python -m tests.hub docs/numbers/kerashub_table.md`: each backbone that {version} can build small from its
constructor, with random weights, after three steps of SGD and three of Adam on 8 rows, under `MirroredStrategy` over
logical CPU devices, beside plain Keras on one device.

A figure is the largest difference of a weight or a loss, relative where these are above 1; in brackets the share of the
parameters that is split. The limit is 2e-6; where it is not met, or a mesh is left out, the reason is below.

In `data=2` batch normalisation is `synchronized=True`. Stages get two micro-batches; one where statistics, or anything
else, couple the rows of a batch. Adam's epsilon is 1e-3: a bias of keys has a gradient of zero but for rounding.
TensorFlow's rewriting of graphs is off, which changes roundings only. Dropout is off, too: each replica draws masks of
its own. {measured}

| backbone | {cells} |
|---|{lines}|
"""


def main() -> None:
    """Measures the backbones, and writes the table after each one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hub", description="Writes the table of KerasHub's backbones."
    )
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", help="names; all others stay as they are in the table")
    parser.add_argument("--missing", action="store_true", help="those that are not in the table")
    parser.add_argument("--one", help="prints the row of one")
    arguments = parser.parse_args()
    if arguments.one:
        print("\n" + _row(arguments.one))
        return
    rows = _read(arguments.table)
    for name in arguments.only or backbones.names():
        if name in backbones.CANNOT or (arguments.missing and name in rows):
            continue
        done = subprocess.run(
            [sys.executable, "-m", "tests.hub", "--one", name],
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        lines = done.stdout.splitlines()
        if done.returncode or not lines or not lines[-1].startswith("| "):
            print(f"{name}: {done.stderr[-1500:]}", flush=True)
            continue
        rows[name] = lines[-1]
        print(rows[name], flush=True)
        _write(arguments.table, rows)


def _row(name: str) -> str:
    """Returns the table row of one backbone, with its reasons inline."""
    warnings.simplefilter("ignore")
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    # Rewriting the graphs takes most of the time.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    from tests.hub.parity import measured

    texts = []
    for _, cell in measured(name, _CELLS):
        text = "-" if cell.difference is None else f"{cell.difference:.1e}"
        text += f" ({100 * cell.share:.0f} %)" if cell.share else ""
        texts.append(f"{text} [{cell.reason}]" if cell.reason else text)
    return f"| {name} | {' | '.join(texts)} |"


def _read(table: Path) -> dict[str, str]:
    """Returns the rows of a table, with their reasons inline again."""
    if not table.exists():
        return {}
    text = table.read_text()
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    rows = re.findall(r"^\| (\w+Backbone) \|.*$", text, re.MULTILINE)
    lines = {name: next(line for line in text.splitlines() if line.startswith(f"| {name} |")) for name in rows}
    return {
        name: re.sub(r" <sup>(\d+)</sup>", lambda found: f" [{reasons[found[1]]}]", line)
        for name, line in lines.items()
    }


def _write(table: Path, rows: dict[str, str]) -> None:
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f" <sup>{numbers.setdefault(found[1], len(numbers) + 1)}</sup>"

    version = f"KerasHub {importlib.metadata.version('keras-hub')}"
    head = _HEAD.format(
        version=version, measured=measured_today(), cells=" | ".join(_CELLS), lines="---|" * (len(_CELLS) - 1) + "---"
    )
    body = [re.sub(r" \[([^\]]*)\]", numbered, rows[name]) for name in sorted(rows)]
    notes = [f"{number}. {reason}" for reason, number in numbers.items()]
    left_out = [f"- {name}: {reason}" for name, reason in sorted(backbones.CANNOT.items())]
    missing = [name for name in backbones.names() if name not in rows and name not in backbones.CANNOT]
    parts = ["\n".join(body), "\n".join(notes), "Left out:\n\n" + "\n".join(left_out)]
    parts.append(f"Not measured yet: {', '.join(missing)}." if missing else "")
    table.write_text(head + "\n\n".join(part for part in parts if part) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
