"""A selection from a grid that covers every pair of properties (pairwise testing)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

#: An element of the grid.
Element = TypeVar("Element")
Pair = frozenset[tuple[str, Hashable]]


def pairs_of(properties: Mapping[str, Hashable]) -> set[Pair]:
    """Returns each pair of two properties with their values."""
    return {frozenset(pair) for pair in itertools.combinations(properties.items(), 2)}


def covering(
    elements: Sequence[Element],
    properties: Callable[[Element], Mapping[str, Hashable]],
    cost: Callable[[Element], float],
    first: int = 0,
) -> list[Element]:
    """Selects elements so that each pair of values of two properties that occurs is in one of them.

    Takes the element that adds most pairs for its cost, again and again. Most defects depend on one value or on a
    pair of them, so this finds nearly what the whole grid finds.

    Args:
        elements: The elements to choose from.
        properties: Returns the properties of an element, by name. All elements have the same names.
        cost: Returns what it costs to test an element, in any unit.
        first: Position of the element that is selected in any case, modulo their number. As many selections as
            elements, with different positions, reach all elements.

    Returns:
        The selected elements, in the order of `elements`.
    """
    first %= len(elements)
    order = [*range(first, len(elements)), *range(first)]
    pairs = [pairs_of(properties(element)) for element in elements]
    selected = {first}
    missing = set().union(*pairs) - pairs[first]
    while missing:
        best = max(order, key=lambda i: len(pairs[i] & missing) / cost(elements[i]))
        selected.add(best)
        missing -= pairs[best]
    return [elements[i] for i in sorted(selected)]
