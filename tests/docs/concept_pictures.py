"""Draws pictures of the pages: ``python -m tests.docs.concept_pictures`` writes them to docs/pictures.

The background is white and the text dark, so that a picture is readable on a page of any colour.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH = 640
WEIGHTS, ROWS, GRADIENTS, SLOTS, PLAIN = "#9ec5e8", "#f4c48b", "#a8d5a2", "#d9b3e6", "#eeeeee"


class Drawing:
    """A picture that grows by boxes, lines and text.

    Args:
        title: for those who do not see it.
        height: in the unit of the coordinates, of which `WIDTH` are the width.
    """

    def __init__(self, title: str, height: int) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
            'font-size="18" role="img">',
            f"  <title>{escape(title)}</title>",
            "  <defs>",
            '    <marker id="tip" markerUnits="userSpaceOnUse" markerWidth="12" markerHeight="12" refX="11" '
            'refY="5.5" orient="auto-start-reverse">',
            '      <path d="M0,0 L12,5.5 L0,11 z" fill="#444444"/>',
            "    </marker>",
            "  </defs>",
            f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def frame(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """Draws the dashed frame of a device or a host, with its name inside, at the top."""
        self._lines.append(
            f'  <rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="none" '
            'stroke="#8b949e" stroke-dasharray="6 4"/>'
        )
        self.text(x + 10, y + 22, name, anchor="start", colour="#59636e")

    def box(self, x: float, y: float, width: float, height: float, label: str, colour: str = PLAIN) -> None:
        """Draws a filled box with text in its middle."""
        self._lines.append(
            f'  <rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{colour}" '
            'stroke="#222222"/>'
        )
        self.text(x + width / 2, y + height / 2 + 6, label)

    def circle(self, x: float, y: float, radius: float, label: str) -> None:
        """Draws a circle with text in its middle."""
        self._lines.append(f'  <circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{PLAIN}" stroke="#222222"/>')
        self.text(x, y + 6, label)

    def text(self, x: float, y: float, text: str, *, anchor: str = "middle", colour: str = "#1f2328") -> None:
        """Writes text; y is its base line."""
        self._lines.append(f'  <text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>')

    def arrow(self, start: tuple[float, float], end: tuple[float, float], *, both: bool = False) -> None:
        """Draws an arrow, with two heads if `both`."""
        (x, y), (u, v) = start, end
        first = ' marker-start="url(#tip)"' if both else ""
        self._lines.append(
            f'  <line x1="{x:g}" y1="{y:g}" x2="{u:g}" y2="{v:g}" stroke="#444444" stroke-width="2"{first} '
            'marker-end="url(#tip)"/>'
        )

    def __str__(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])


def data_parallelism() -> Drawing:
    """Two replicas, each with its rows, whose gradients are all-reduced."""
    picture = Drawing("Two replicas compute gradients of their own rows; the sum of both updates both", 364)
    for k, rows in enumerate(("rows 0 to 3", "rows 4 to 7")):
        y = 14 + 174 * k
        picture.frame(16, y, 608, 130, f"device {k}")
        picture.box(32, y + 45, 120, 60, rows, ROWS)
        picture.arrow((152, y + 75), (192, y + 75))
        picture.box(196, y + 45, 110, 60, "weights", WEIGHTS)
        picture.arrow((306, y + 75), (346, y + 75))
        picture.box(350, y + 45, 110, 60, "gradients", GRADIENTS)
        picture.arrow((460, y + 75), (500, y + 75))
        picture.box(504, y + 45, 104, 60, "update", WEIGHTS)
    picture.arrow((405, 121), (405, 231), both=True)
    picture.text(418, 172, "all-reduce", anchor="start")
    picture.text(WIDTH / 2, 350, "Weights are equal before and after each step.", colour="#59636e")
    return picture


def sharded_state() -> Drawing:
    """The bytes of a parameter on one of four devices, by what is sharded."""
    picture = Drawing("Bytes of a parameter on one of four devices: 16 replicated, 10 and 4 sharded", 250)
    states = (("replicated", (4, 4, 8)), ('shard="optimizer"', (4, 4, 2)), ('shard="weights"', (1, 1, 2)))
    for k, (name, sizes) in enumerate(states):
        y, x = 42 + 62 * k, 190.0
        picture.text(176, y + 28, name, anchor="end")
        for size, colour in zip(sizes, (WEIGHTS, GRADIENTS, SLOTS), strict=True):
            picture.box(x, y, 20 * size, 44, str(size), colour)
            x += 20 * size
        picture.text(x + 12, y + 28, f"= {sum(sizes)} bytes", anchor="start")
    for k, (name, colour) in enumerate((("weights", WEIGHTS), ("gradients", GRADIENTS), ("Adam's slots", SLOTS))):
        picture.box(110 + 150 * k, 220, 18, 18, "", colour)
        picture.text(136 + 150 * k, 236, name, anchor="start")
    picture.text(WIDTH / 2, 26, "bytes of one parameter on one of four devices", colour="#59636e")
    return picture


def experts() -> Drawing:
    """Tokens of two devices go to the experts of both, and come back."""
    picture = Drawing("An all-to-all takes each token to the device of its expert, a second one brings it back", 300)
    for k in range(2):
        y = 16 + 132 * k
        picture.frame(16, y, 608, 116, f"device {k}")
        picture.box(32, y + 40, 110, 52, f"tokens {'abcd'[2 * k]}, {'abcd'[2 * k + 1]}", ROWS)
        for j in range(2):
            picture.box(250 + 74 * j, y + 40, 66, 52, f"E{2 * k + j}", WEIGHTS)
        picture.box(498, y + 40, 110, 52, f"tokens {'abcd'[2 * k]}, {'abcd'[2 * k + 1]}", ROWS)
        for other in range(2):
            into = 16 + 132 * other + 66
            picture.arrow((142, y + 66), (248, into))
            picture.arrow((392, y + 66), (496, into))
    picture.text(195, 286, "all-to-all", colour="#59636e")
    picture.text(444, 286, "all-to-all", colour="#59636e")
    picture.text(320, 286, "experts", colour="#59636e")
    return picture


def mesh() -> Drawing:
    """Eight devices of two hosts with their coordinates."""
    picture = Drawing("Eight devices on two hosts: tensor peers are neighbours, replicas are on different hosts", 290)
    for host in range(2):
        y = 16 + 120 * host
        picture.frame(16, y, 608, 106, f"host {host}")
        for k in range(4):
            x = 30 + 155 * k
            picture.box(x, y + 36, 115, 54, f"{host} . {k // 2} . {k % 2}", (WEIGHTS, GRADIENTS)[k // 2])
        for k in (0, 2):
            picture.arrow((147 + 155 * k, y + 63), (183 + 155 * k, y + 63), both=True)
    picture.text(
        WIDTH / 2, 276, "data . pipe . tensor of mesh data=2, pipe=2, tensor=2; colours are stages", colour="#59636e"
    )
    return picture


def ring() -> Drawing:
    """The sums that four ranks hold after the steps of a ring all-reduce."""
    picture = Drawing("A ring all-reduce: three steps of reduce-scatter, three of all-gather", 470)
    held = [[frozenset({rank}) for _ in range(4)] for rank in range(4)]
    states = [("at the start", held)]
    for step in range(6):
        held = _ring_step(held, step)
        if step in (0, 2, 5):
            name = {0: "after one step", 2: "after the reduce-scatter", 5: "after the all-gather"}[step]
            states.append((name, held))
    for number, (name, state) in enumerate(states):
        left, top = 24 + 308 * (number % 2), 40 + 218 * (number // 2)
        picture.text(left + 142, top - 14, name)
        for rank, part in itertools.product(range(4), repeat=2):
            summed = state[rank][part]
            label = "sum" if len(summed) == 4 else "+".join(map(str, sorted(summed)))
            colour = (PLAIN, "#fdf0d8", "#f9dcae", "#f4c48b")[len(summed) - 1]
            picture.box(left + 71 * part, top + 38 * rank, 66, 34, label, colour)
    picture.text(WIDTH / 2, 456, "rows are ranks, columns are parts of the tensor", colour="#59636e")
    return picture


def tensor_split() -> Drawing:
    """A dense layer split by columns, and the next one by rows: one sum for both."""
    picture = Drawing("Z = relu(X A) B on two devices: columns of A, rows of B, and the sum of two parts", 380)
    picture.box(14, 154, 46, 52, "X")
    for k in range(2):
        y, number = 14 + 178 * k, "₀₁"[k]
        split, part = ((WEIGHTS, "#d5e6f5"), (ROWS, "#fae5c9"))[k]
        picture.frame(102, y, 412, 154, f"device {k}")
        middle = y + 86
        picture.arrow((60, 172 + 16 * k), (120, middle + (6, -6)[k]))
        picture.box(124, middle - 44, 46, 88, f"A{number}", split)
        picture.arrow((170, middle), (228, middle))
        picture.text(199, middle - 12, "relu")
        picture.box(232, middle - 30, 46, 60, f"H{number}", part)
        picture.arrow((278, middle), (318, middle))
        picture.box(322, middle - 24, 88, 48, f"B{number}", split)
        picture.arrow((410, middle), (450, middle))
        picture.box(454, middle - 30, 46, 60, f"Z{number}", part)
        picture.arrow((500, middle), (541, 172 + 16 * k))
    picture.circle(556, 180, 17, "+")
    picture.arrow((573, 180), (587, 180))
    picture.box(590, 154, 38, 52, "Z")
    for x, y, text in ((37, 234, "copy"), (560, 234, "reduce")):
        picture.text(x, y, text, colour="#59636e")
    for x, text in ((147, "columns"), (255, "in pieces"), (366, "rows"), (477, "to be added")):
        picture.text(x, 368, text, colour="#59636e")
    return picture


def _ring_step(held: Sequence[Sequence[frozenset[int]]], step: int) -> list[list[frozenset[int]]]:
    """Returns what four ranks hold after each has sent one part to the next rank."""
    after = [list(parts) for parts in held]
    for rank in range(4):
        # The part that a rank has just received is the one that it sends on.
        part = (rank - step) % 4 if step < 3 else (rank + 1 - (step - 3)) % 4
        to = (rank + 1) % 4
        after[to][part] = held[rank][part] | (held[to][part] if step < 3 else frozenset())
    return after


def tree() -> Drawing:
    """A binary tree of eight ranks: sums go up, the total comes down."""
    picture = Drawing("A tree all-reduce of eight ranks: three steps up, three steps down", 290)
    positions = {
        (level, k): (40 + 560 * (2 * k + 1) / 2 ** (4 - level), 232 - 62 * level)
        for level in range(4)
        for k in range(8 >> level)
    }
    for (level, k), (x, y) in positions.items():
        if level < 3:
            above, below = positions[level + 1, k // 2]
            picture.arrow((x, y - 17), (above + (-12 if k % 2 == 0 else 12), below + 19), both=True)
    for (level, k), (x, y) in positions.items():
        first = k << level
        last = first + (1 << level) - 1
        label = str(first) if level == 0 else f"{first} to {last}"
        width = 44 if level == 0 else 72
        picture.box(x - width / 2, y - 17, width, 34, label, ("#eeeeee", "#fdf0d8", "#f9dcae", "#f4c48b")[level])
    picture.text(WIDTH / 2, 278, "a box is a sum over these ranks; sums go up, the total comes down", colour="#59636e")
    return picture


def one_step() -> Drawing:
    """The path of a training step, from fit to the collective and back."""
    picture = Drawing(
        "The path of one step: fit, the step's function, replicas, gradient sync, collective, update", 440
    )
    steps = (
        ("model.fit", "Keras, strategies/_keras_hooks", PLAIN),
        ("global batch to rows of replicas", "strategies/batches", ROWS),
        ("forward and backward pass", "strategies/replica, keras_ext", WEIGHTS),
        ("gradients in buckets", "strategies/engine, strategies/buckets", GRADIENTS),
        ("all-reduce or reduce-scatter", "strategies/collectives", GRADIENTS),
        ("update", "strategies/engine, strategies/sharding", SLOTS),
    )
    for k, (name, room, colour) in enumerate(steps):
        y = 14 + 70 * k
        picture.box(20, y, 290, 46, name, colour)
        picture.text(326, y + 29, room, anchor="start", colour="#59636e")
        if k:
            picture.arrow((165, y - 24), (165, y - 2))
    return picture


PICTURES: Mapping[str, Callable[[], Drawing]] = {
    "concept_data.svg": data_parallelism,
    "concept_experts.svg": experts,
    "concept_mesh.svg": mesh,
    "concept_ring.svg": ring,
    "concept_shards.svg": sharded_state,
    "concept_tree.svg": tree,
    "one_step.svg": one_step,
    "tensor_split.svg": tensor_split,
}


if __name__ == "__main__":
    for file, draw in PICTURES.items():
        (FOLDER / file).write_text(str(draw()))
