"""Sizes of a mesh's axes that do not fit are refused with the fix."""

import pytest

from strategies.topology.axes import resolve_sizes


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"date": 8}, r"axes are \['data', 'expert', 'pipe', 'tensor'\]. Received: 'date'"),
        ({"data": 0}, "Received: 0 in"),
        ({"data": -2}, "Received: -2 in"),
        ({"data": 2.0}, "Received: 2.0 in"),
        ({"data": True}, "Received: True in"),
        ({"data": -1, "pipe": -1}, "Only one mesh axis may be -1"),
        (
            {"data": 3, "tensor": 2},
            r"need 6 devices. Received: 8. Nearest sizes that fit: {'data': 4, 'tensor': 2}",
        ),
        ({"data": -1, "tensor": 3}, r"multiple of 3 devices. Received: 8. .*{'data': 4, 'tensor': 2}"),
        ({"data": 16}, r"Nearest sizes that fit: {'data': 8}"),
        ({"tensor": 2}, r"Nearest sizes that fit: {'data': 4, 'tensor': 2}"),
        ({"pipe": 2, "tensor": 2}, r"Nearest sizes that fit: {'data': 2, 'pipe': 2, 'tensor': 2}"),
        ({"tensor": 3}, r"Nearest sizes that fit: {'tensor': 8}"),
    ],
)
def test_refused_axes(axes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_sizes(axes, 8)
