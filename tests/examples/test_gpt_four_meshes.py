"""The picture of one model on four meshes: how it is drawn, and the picture in the README."""

import re
from xml.etree import ElementTree

from gpt import four_meshes

from tests.examples import EXAMPLES

KEPT = EXAMPLES.parent / "docs" / "pictures" / "four_meshes.svg"


def test_draws_curves_over_each_other() -> None:
    curves = {"data=4": [5.0, 3.0, 2.0, 1.5], "pipe=4": [5.0, 3.0, 2.0, 1.25]}
    assert four_meshes.largest_difference(curves) == 0.25
    drawn = ElementTree.fromstring(four_meshes.draw(curves, 5, "A caption."))
    lines = [each for each in drawn.iter() if each.tag.endswith("polyline")]
    points = [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in lines]
    assert [len(each) for each in points] == [4, 4]
    assert points[0][:3] == points[1][:3]
    # Smaller values are lower; later curves are narrower.
    assert points[1][3][1] > points[0][3][1]
    widths = [float(line.attrib["stroke-width"]) for line in lines]
    assert widths == sorted(widths, reverse=True)
    words = [each.text for each in drawn.iter() if each.tag.endswith("text")]
    assert {"data=4", "pipe=4", "step 20", "loss", "A caption."} <= set(words)


def test_the_picture_of_readme_shows_one_curve() -> None:
    text = KEPT.read_text()
    assert len(text) < 20_000
    assert all(f">{mesh}<" in text for mesh in four_meshes.MESHES)
    [difference] = re.findall(r"Largest difference of any two losses: (\S+)\.<", text)
    assert float(difference) < 1e-4
