"""The text of errors about processes that differ; the strategy arguments of all processes, compared."""

import pytest

from strategies.topology.agreement import Request, agreed_nodes, differences


def texts(*requests: Request) -> list[str]:
    return [request.to_text() for request in requests]


def test_requests_that_are_alike_tell_the_nodes() -> None:
    requests = [Request("S", {"pipe": 2}, 1, {"reduction": "average"}, node) for node in (0, 0, 1)]
    assert agreed_nodes(texts(*requests)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Request("T", {"pipe": 2}, 1), r"same strategy; .* rank 0: strategy=S \| rank 1: strategy=T\."),
        (
            Request("S", {"pipe": 2}, 4),
            r"same number of devices; .*CUDA_VISIBLE_DEVICES.* rank 0: num_devices=1 \| rank 1: num_devices=4",
        ),
        (Request("S", {"tensor": 2}, 1), r"same mesh; .* rank 0: mesh={'pipe': 2} \| rank 1: mesh={'tensor': 2}"),
        (Request("S", None, 1), "same mesh; .* rank 1: mesh=None"),
        (
            Request("S", {"pipe": 2}, 1, {"bucket_bytes": 7}),
            r"same bucket_bytes\. .* rank 0: bucket_bytes=None \| rank 1: bucket_bytes=7",
        ),
    ],
)
def test_what_differs_is_named_with_what_each_has(other: Request, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agreed_nodes(texts(Request("S", {"pipe": 2}, 1), other))


def test_lines_that_others_lack_are_shown_by_rank() -> None:
    assert differences([["a", "b"], ["b", "c"], ["a", "b"]]) == (
        "Received, where they differ: ranks 0, 2: a | rank 1: c."
    )
    assert differences([["a"], ["a", *"12345"]]) == (
        "Received, where they differ: rank 0: none of these | rank 1: 1; 2; 3; and 2 more."
    )
