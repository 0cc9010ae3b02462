"""Draws the activity of several devices over time as an SVG picture. Pure: text in, text out.

It draws boxes on lanes and knows nothing of pipelines; `timeline` gives the boxes their meaning. A picture is
self-contained: no scripts, no style sheets, and only fonts that every viewer has. Text is large, so that it can still
be read where a page shows the picture at half its size, as on a phone.
"""

from __future__ import annotations

import itertools
import math
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

#: Sizes in pixels. A lane is a box and the gap below it.
MARGIN, BOX_HEIGHT, LANE_HEIGHT = 20, 32, 40
#: Names of lanes are left of them if all are at most this wide, otherwise above them, on lines of this height.
NAME_WIDTH, NAME_HEIGHT = 130, 26
#: The width of the time axis is chosen such that a box of median length has this width, within these bounds.
USUAL_BOX_WIDTH, PLOT_WIDTHS = 18, (560, 1680)
TITLE_SIZE, TEXT_SIZE, TICK_SIZE, LABEL_SIZES = 20, 18, 16, (16, 14, 12)
INK, FAINT_INK, IDLE, GRID_LINE = "#1f2328", "#59636e", "#eeeff1", "#d5d9de"
#: Longer names lose their beginning, because device names mostly differ at the end.
LONGEST_NAME, LONGEST_TITLE = 40, 90


@dataclass(frozen=True)
class Box:
    """A span of time on a lane.

    Attributes:
        lane: the number of the lane; 0 is at the top.
        start: in the unit of the axis.
        end: in the unit of the axis.
        label: drawn in the box if there is room.
        tooltip: shown when the mouse rests on the box.
        colour: ``#rrggbb``.
    """

    lane: int
    start: float
    end: float
    label: str
    tooltip: str
    colour: str


def chart(
    title: str,
    caption: str,
    lanes: Sequence[str],
    boxes: Sequence[Box],
    legend: Sequence[Sequence[tuple[str, str]]],
    axis: str,
    plot_width: float | None = None,
) -> str:
    """Draws boxes on lanes, a time axis below and a legend of the colours above.

    Args:
        title: the first line.
        caption: the second line.
        lanes: the names of the lanes, from the top.
        boxes: at least one; a lane is idle where it has no box.
        legend: colours with their meanings, in groups; each group has its own line if not all fit on one line.
        axis: the label of the time axis, with its unit.
        plot_width: the length of the time axis in pixels; None to leave room for the labels of most boxes.

    Returns:
        The text of an SVG file, with one ``<rect class="box">`` for each box, in the order received.
    """
    first, last = min(box.start for box in boxes), max(box.end for box in boxes)
    span = (last - first) or 1.0
    shown = [_shortened(name, LONGEST_NAME) for name in lanes]
    name_width = max((_width(name, TEXT_SIZE) for name in shown), default=0)
    above = name_width > NAME_WIDTH
    left = MARGIN if above else MARGIN + name_width + 12
    offset = NAME_HEIGHT if above else 0
    plot = plot_width or _plot_width(boxes, span)
    width = math.ceil(left + plot + MARGIN + 10)
    title = _shortened(title, LONGEST_TITLE)
    # The factor is for the title's bold font, which is wider.
    width = max(width, math.ceil(max(1.15 * _width(title, TITLE_SIZE), _width(caption, TEXT_SIZE)) + 2 * MARGIN))
    top, keys = _legend(legend, width)
    bottom = top + (offset + LANE_HEIGHT) * len(lanes)

    def x_of(time: float) -> float:
        return left + (time - first) / span * plot

    def y_of(lane: int) -> float:
        return top + (offset + LANE_HEIGHT) * lane + offset

    lines = [
        _text(MARGIN, 36, title, f'font-size="{TITLE_SIZE}" font-weight="bold"'),
        _text(MARGIN, 62, caption),
        *keys,
    ]
    names = []
    for k, name in enumerate(lanes):
        lines.append(
            f'<rect class="idle" x="{left:.2f}" y="{y_of(k)}" width="{plot:.2f}" height="{BOX_HEIGHT}" fill="{IDLE}"/>'
        )
        x, y, anchor = (left, y_of(k) - 7, "") if above else (left - 12, y_of(k) + 22.5, 'text-anchor="end"')
        names.append(_text(x, y, shown[k], anchor, tooltip=name))
    for time, label in _axis_ticks(first, last, plot):
        x = x_of(time)
        lines.append(f'<path d="M{x:.2f} {top - 4}V{bottom}" stroke="{GRID_LINE}"/>')
        lines.append(_text(x, bottom + 17, label, f'text-anchor="middle" font-size="{TICK_SIZE}" fill="{FAINT_INK}"'))
    lines.append(_text(left + plot / 2, bottom + 42, axis, f'text-anchor="middle" fill="{FAINT_INK}"'))
    lines += names

    size, labels = _label_size(boxes, plot / span), []
    # The same room for all labels: otherwise, among boxes of equal length, those up to 9 would have a label and those
    # from 10 none.
    room = max(_width(box.label, size) for box in boxes) + 2
    for box in boxes:
        x, y, box_width = x_of(box.start), y_of(box.lane), (box.end - box.start) / span * plot
        # An edge separates neighbours, but would cover a very narrow box.
        edge = ' stroke="#ffffff"' if box_width > 4 else ""
        lines.append(
            f'<rect class="box" x="{x:.2f}" y="{y}" width="{box_width:.2f}" height="{BOX_HEIGHT}" fill="{box.colour}"'
            f"{edge}><title>{_escaped(box.tooltip)}</title></rect>"
        )
        if box_width >= room:
            base = y + BOX_HEIGHT / 2 + 0.36 * size
            labels.append(_text(x + box_width / 2, base, box.label, f'fill="{_ink_on(box.colour)}"'))
    # Labels come last, so that no box covers them, and ignore the mouse, so that tooltips of boxes work.
    lines += [f'<g font-size="{size}" text-anchor="middle" pointer-events="none">', *labels, "</g>"]

    height = bottom + 58
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(_printable(f"{title}. {caption}"))} '
            f'font-family="Helvetica, Arial, sans-serif" font-size="{TEXT_SIZE}" fill="{INK}">',
            # A white background keeps the text readable on a dark page.
            f'<rect class="paper" width="{width}" height="{height}" fill="#ffffff"/>',
            *lines,
            "</svg>\n",
        ]
    )


def shades(colour: str, number: int) -> list[str]:
    """Returns `number` colours as ``#rrggbb``: the given one, then lighter ones at equal distances."""
    lightest = 0.55
    shares = [lightest * i / max(1, number - 1) for i in range(number)]
    return ["#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in _parts(colour)) for share in shares]


def _parts(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _ink_on(colour: str) -> str:
    """Returns black or white, whichever has the larger contrast by the rules of the WCAG."""
    linear = [(part / 255 / 12.92) if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in _parts(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def _plot_width(boxes: Sequence[Box], span: float) -> float:
    lengths = [box.end - box.start for box in boxes if box.end > box.start]
    smallest, largest = PLOT_WIDTHS
    return min(largest, max(smallest, USUAL_BOX_WIDTH * span / statistics.median(lengths))) if lengths else smallest


def _label_size(boxes: Sequence[Box], pixels_per_unit: float) -> int:
    """Returns the largest font size at which over 90 % of the labels fit, else the smallest one."""
    longest = max((box.label for box in boxes), key=len)
    for size in LABEL_SIZES:
        if sum(_width(longest, size) + 2 <= (box.end - box.start) * pixels_per_unit for box in boxes) > 0.9 * len(
            boxes
        ):
            return size
    return LABEL_SIZES[-1]


def _legend(legend: Sequence[Sequence[tuple[str, str]]], width: float) -> tuple[int, list[str]]:
    """Returns the y at which the lanes begin below the legend, and the legend's SVG elements, on one or more lines."""
    all_keys = list(itertools.chain(*legend))
    # With several lines, keys are aligned in columns.
    widest = max(_width(meaning, TEXT_SIZE) for _, meaning in all_keys) + 40
    fits = sum(_width(meaning, TEXT_SIZE) + 40 for _, meaning in all_keys) + MARGIN <= width
    lines, y = [], 80
    for group in [all_keys] if fits else legend:
        x = float(MARGIN)
        for colour, meaning in group:
            needed = _width(meaning, TEXT_SIZE) + 40 if fits else widest
            if x > MARGIN and x + needed > width:
                x, y = float(MARGIN), y + 27
            lines.append(f'<rect class="key" x="{x:.2f}" y="{y}" width="16" height="16" fill="{colour}"/>')
            lines.append(_text(x + 22, y + 14, meaning))
            x += needed
        y += 27
    return y + 8, lines


def _axis_ticks(first: float, last: float, plot: float) -> list[tuple[float, str]]:
    """Returns the times of ticks, which are 1, 2 or 5 times a power of ten apart, with their labels."""
    apart = max(80.0, _width(f"{max(abs(first), abs(last)):.3f}", TICK_SIZE) + 10)
    least = ((last - first) or 1.0) * apart / plot
    power = math.floor(math.log10(least))
    step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power >= least * (1 - 1e-9))
    # The number of decimals follows from the step, not from `power`: a step of 10 * 10 ** power needs one fewer.
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    numbers = range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)
    return [(number * step, f"{number * step:.{decimals}f}") for number in numbers]


def _width(text: str, size: int) -> float:
    """Returns an upper estimate of the width of a text in pixels, sufficient for wide fonts."""

    def letter_width(letter: str) -> float:
        if unicodedata.east_asian_width(letter) in "WF" or letter in "MWmw@%…":
            return 1.0
        return 0.75 if letter.isupper() else 0.62

    return size * sum(map(letter_width, text))


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else "…" + text[1 - longest :]


def _text(x: float, y: float, text: str, attributes: str = "", tooltip: str | None = None) -> str:
    title = f"<title>{_escaped(tooltip)}</title>" if tooltip not in (None, text) else ""
    return f'<text x="{x:.2f}" y="{y:.2f}"{" " + attributes if attributes else ""}>{title}{_escaped(text)}</text>'


def _escaped(text: str | None) -> str:
    return escape(_printable(text or ""))


def _printable(text: str) -> str:
    """Replaces control characters, which XML does not allow even when escaped."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
