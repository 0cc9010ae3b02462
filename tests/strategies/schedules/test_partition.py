"""Cuts of chains: literal ones, and a check that no other cut is better."""

from __future__ import annotations

import itertools
import random

import pytest

from strategies.schedules.partition import Cost, Partition, at, balanced, uniform


def chain(*seconds: float) -> list[Cost]:
    return [Cost(f"layer {i}", each) for i, each in enumerate(seconds)]


def sums(partition: Partition) -> list[float]:
    return [sum(link.seconds for link in stage) for stage in partition.stages]


def test_uniform() -> None:
    assert uniform(chain(*[1] * 7), 3).starts == (0, 3, 5)
    assert uniform(chain(1, 1), 2).starts == (0, 1)


def test_balanced() -> None:
    links = chain(1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert sums(balanced(links, [link.seconds for link in links], 3)) == [15, 13, 17]


def test_of_equals_the_most_even_one() -> None:
    links = chain(4, 1, 1, 1, 1, 2)
    assert sums(balanced(links, [link.seconds for link in links], 3)) == [4, 3, 3]


def test_none_is_better() -> None:
    rng = random.Random(0)
    for _ in range(200):
        number = rng.randint(1, 8)
        links = chain(*(rng.choice([0, 1, 2, 3, 5, 8]) for _ in range(number)))
        memory = [rng.randint(0, 5) for _ in links]
        num_stages, limit = rng.randint(1, number), rng.randint(3, 12)
        possible = []
        for cut in itertools.combinations(range(1, number), num_stages - 1):
            partition = Partition(tuple(links), (0, *cut))
            edges = (0, *cut, number)
            if all(sum(memory[start:end]) <= limit for start, end in itertools.pairwise(edges)):
                possible.append(max(sums(partition)))
        weights = [link.seconds for link in links]
        if possible:
            found = balanced(links, weights, num_stages, memory=[memory] * num_stages, max_memory=limit)
            assert max(sums(found)) == min(possible)
        else:
            with pytest.raises(ValueError, match="No cut"):
                balanced(links, weights, num_stages, memory=[memory] * num_stages, max_memory=limit)


def test_a_limit_for_each_stage() -> None:
    links = chain(1, 1, 1, 1)
    found = balanced(links, [1, 1, 1, 1], 2, memory=[[1, 1, 1, 1]] * 2, max_memory=[1, 3])
    assert found.starts == (0, 1)


def test_at_names() -> None:
    assert at(chain(1, 1, 1, 1), ["layer 1", "layer 3"]).starts == (0, 1, 3)
    for names in (["layer 3", "layer 1"], ["layer 0"], ["none"], ["layer 1", "layer 1"]):
        with pytest.raises(ValueError, match="Received"):
            at(chain(1, 1, 1, 1), names)


def test_prints() -> None:
    links = [Cost("a", 0.001, 1000, 64), Cost("b", 0.002, 2000, 128), Cost("last one", 0.003, 3000, 256)]
    assert str(uniform(links, 2)).splitlines() == [
        "stage  layers  from      to          ms  parameters  activations, bytes",
        "    0       2  a         b         3.00       3,000                 192",
        "    1       1  last one  last one  3.00       3,000                 256",
    ]


@pytest.mark.parametrize("num_stages", [0, 3])
def test_refuses(num_stages: int) -> None:
    with pytest.raises(ValueError, match=f"num_stages={num_stages}"):
        uniform(chain(1, 1), num_stages)
    with pytest.raises(ValueError, match=f"num_stages={num_stages}"):
        balanced(chain(1, 1), [1, 1], num_stages)
