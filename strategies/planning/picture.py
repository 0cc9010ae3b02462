"""A picture of the parts of a step's time, one bar for each of the best layouts."""

from __future__ import annotations

from strategies.planning.report import schedule_of
from strategies.planning.search import Candidate, Search
from strategies.svg_chart import Box, chart

# Colours that colour-blind people can tell apart, by part.
_COLOURS = {
    "layers": "#0072b2",
    "logits": "#56b4e9",
    "recompute": "#9467bd",
    "tensor": "#e69f00",
    "experts": "#f0e442",
    "messages": "#cc79a7",
    "bubble": "#999999",
    "offload": "#8c564b",
    "gradients": "#d55e00",
    "update": "#009e73",
}
#: Most parts are small, and have a tooltip: the width need not leave room for their labels.
_PLOT_WIDTH = 640


def picture(found: Search, title: str) -> str:
    """Returns an SVG picture of the parts of a step's time.

    Args:
        found: the result of a search.
        title: of the picture.

    Raises:
        ValueError: no layout fits.
    """
    if not found.best:
        raise ValueError("There is no picture of a plan without layouts. Received: no layout fits.")
    boxes, used = [], set()
    for lane, candidate in enumerate(found.best):
        start = 0.0
        for name, seconds in candidate.time.parts().items():
            if seconds > 0:
                used.add(name)
                share = seconds / candidate.time.total
                tooltip = f"{name}: {seconds:.3f} s, {share:.1%} of the step"
                boxes.append(Box(lane, start, start + seconds, f"{share:.0%}", tooltip, _COLOURS[name]))
                start += seconds
    legend = [[(colour, name) for name, colour in _COLOURS.items() if name in used]]
    caption = f"{len(found.best)} fastest layouts: seconds of a step, share of each part"
    lanes = [_name(each) for each in found.best]
    return chart(title, caption, lanes, boxes, legend, "seconds of a step", plot_width=_PLOT_WIDTH)


def _name(candidate: Candidate) -> str:
    layout = candidate.layout
    sizes = " ".join(f"{axis}={size}" for axis, size in layout.mesh.items() if size > 1) or "one device"
    more = [each for each in (schedule_of(candidate), layout.shard) if each not in ("-", None)]
    return " ".join([sizes, *map(str, more)])
