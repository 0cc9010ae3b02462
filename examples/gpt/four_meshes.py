"""Trains the model on four meshes and draws their loss curves: `python examples/gpt/four_meshes.py --processes=4`."""

from __future__ import annotations

import csv
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import app, flags

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpt import text

_ROOT = Path(__file__).resolve().parents[2]

MESHES = ("data=4", "pipe=4", "tensor=4", "data=1,pipe=2,tensor=2")
_OPTIONS = (
    "--epochs=32",
    "--steps_per_epoch=5",
    "--batch_size=16",
    "--sequence_length=32",
    "--num_layers=2",
    "--units=32",
    "--warmup_steps=20",
    "--learning_rate=0.003",
    "--sample_length=0",
    "--partition=uniform",
    "--verbose=0",
)

#: Text is large, so that it can be read where a phone shows the picture at half its size.
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM, _TEXT = 640, 420, 56, 16, 16, 98, 18
#: From the widest line to the narrowest: each line stays visible beneath the next.
_STROKES = (("#9ecae9", 13.0), ("#f58518", 8.5), ("#54a24b", 4.5), ("#111111", 1.2))


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_integer("processes", 1, "Processes, started by strategies.launch, of one device each.", lower_bound=1)
    flags.DEFINE_string("output", str(_ROOT / "docs" / "pictures" / "four_meshes.svg"), "The picture, an SVG file.")


def train(mesh: str, num_processes: int, data_file: Path, folder: Path) -> list[float]:
    """Returns the loss of each epoch of a run on a mesh.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    program = [str(Path(__file__).with_name("main.py")), f"--mesh={mesh}", f"--run_dir={folder}", *_OPTIONS]
    program.append(f"--data_file={data_file}")
    if num_processes > 1:
        launcher = ["-m", "strategies.launch", "--nproc-per-node", str(num_processes)]
        program = [*launcher, *program, "--strategy=multi_worker"]
    subprocess.run([sys.executable, *program], cwd=_ROOT, check=True)
    with (folder / "history.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def largest_difference(curves: Mapping[str, Sequence[float]]) -> float:
    """Returns the largest difference of any two curves at any point."""
    pairs = itertools.combinations(curves.values(), 2)
    return max(abs(one - other) for a, b in pairs for one, other in zip(a, b, strict=True))


def draw(curves: Mapping[str, Sequence[float]], steps_per_point: int, caption: str) -> str:
    """Returns the curves as SVG, each wider than the next, so that all stay visible where they coincide.

    Args:
        curves: values by name, at most four curves of equal length.
        steps_per_point: number of training steps between two values.
        caption: one or two lines of text below the curves.
    """
    values = [value for curve in curves.values() for value in curve]
    least, most = 0.0, max(values) * 1.05
    count = len(next(iter(curves.values())))
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(index: float) -> float:
        return _LEFT + inner_width * index / max(1, count - 1)

    def y(value: float) -> float:
        return _TOP + inner_height * (most - value) / (most - least)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="{_TEXT}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tick in range(int(most) + 1):
        lines.append(f'<path d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 6:.1f}" text-anchor="end">{tick}</text>')
    below = _HEIGHT - _BOTTOM + 24
    for index in range(count // 4 - 1, count, max(1, count // 4)):
        step = (index + 1) * steps_per_point
        # The last one would leave the picture.
        anchor = "middle" if index < count - 1 else "end"
        lines.append(f'<text x="{x(index):.1f}" y="{below}" text-anchor="{anchor}">step {step}</text>')
    lines.append(f'<text x="20" y="{_TOP + inner_height / 2:.0f}" transform="rotate(-90 20 ')
    lines[-1] += f'{_TOP + inner_height / 2:.0f})" text-anchor="middle">loss</text>'
    for row, ((name, curve), (colour, width)) in enumerate(zip(curves.items(), _STROKES, strict=False)):
        points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in enumerate(curve))
        stroke = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"'
        lines.append(f'<polyline points="{points}" {stroke}/>')
        at = _TOP + 14 + 27 * row
        lines.append(f'<path d="M{_WIDTH - 310} {at}h40" stroke="{colour}" stroke-width="{width}"/>')
        lines.append(f'<text x="{_WIDTH - 260}" y="{at + 6}">{name}</text>')
    for row, line in enumerate(caption.splitlines()):
        lines.append(f'<text x="{_LEFT}" y="{_HEIGHT - 40 + 26 * row}">{line}</text>')
    return "\n".join([*lines, "</svg>\n"])


def main(argv: list[str]) -> None:
    """Trains on each mesh, and writes the picture."""
    del argv
    num_processes = flags.FLAGS.processes
    with tempfile.TemporaryDirectory() as folder:
        # One text for all runs, even if the pages change meanwhile.
        data_file = Path(folder) / "text"
        data_file.write_bytes(text.DOCUMENT_MARK.join(text.load().documents))
        curves = {mesh: train(mesh, num_processes, data_file, Path(folder) / mesh) for mesh in MESHES}
    where = "one process of four devices" if num_processes == 1 else f"{num_processes} processes"
    difference = largest_difference(curves)
    caption = f"A small GPT on four meshes, {where}.\nLargest difference of any two losses: {difference:.0e}."
    output = Path(flags.FLAGS.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(draw(curves, 5, caption))
    print(caption)


if __name__ == "__main__":
    define_flags()
    app.run(main)
