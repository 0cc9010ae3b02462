"""The strategy arguments of all processes, compared."""

import pytest

from strategies.topology.agreement import Request, agreed_nodes


def texts(*requests: Request) -> list[str]:
    return [request.to_text() for request in requests]


def test_requests_that_are_alike_tell_the_nodes() -> None:
    requests = [Request("S", {"pipe": 2}, 1, {"reduction": "average"}, node) for node in (0, 0, 1)]
    assert agreed_nodes(texts(*requests)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Request("T", {"pipe": 2}, 1), "same strategy; .* rank 0: S; rank 1: T"),
        (Request("S", {"pipe": 2}, 4), "same number of devices; .*CUDA_VISIBLE_DEVICES.* rank 0: 1; rank 1: 4"),
        (Request("S", {"tensor": 2}, 1), "same mesh; .* rank 0: {'pipe': 2}; rank 1: {'tensor': 2}"),
        (Request("S", None, 1), "same mesh; .* rank 1: None"),
        (Request("S", {"pipe": 2}, 1, {"bucket_bytes": 7}), "same bucket_bytes. .* rank 0: None; rank 1: 7"),
    ],
)
def test_what_differs_is_named_with_what_each_has(other: Request, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agreed_nodes(texts(Request("S", {"pipe": 2}, 1), other))
