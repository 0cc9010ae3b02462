"""The text of errors about processes that differ, and the strategy arguments of every process, compared before use.

Processes with different strategies would form groups of different sizes, and wait for each other until a timeout.
Pure: standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_MOST_SHOWN = 3


def differences(lines_by_rank: Sequence[Sequence[str]]) -> str:
    """Returns the last sentence of an error about processes that differ: the lines of each rank that others lack.

    Args:
        lines_by_rank: lines of text of each process, by rank, most informative for the user first.
    """
    # Lines that all processes have, in any order, are left out.
    common = set(lines_by_rank[0]).intersection(*lines_by_rank[1:])
    ranks_by_text: dict[str, list[int]] = {}
    for rank, lines in enumerate(lines_by_rank):
        own = [line for line in lines if line not in common]
        more = f"; and {len(own) - _MOST_SHOWN} more" if len(own) > _MOST_SHOWN else ""
        ranks_by_text.setdefault("; ".join(own[:_MOST_SHOWN]) + more or "none of these", []).append(rank)
    received = (f"{_named(ranks)}: {text}" for text, ranks in ranks_by_text.items())
    return f"Received, where they differ: {' | '.join(received)}."


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


@dataclass(frozen=True)
class Request:
    """The strategy arguments of one process.

    Attributes:
        strategy: the name of the class.
        mesh: the mesh argument, as it was given.
        num_devices: the number of devices of the process.
        options: other arguments that have to be equal, by name.
        node: the node of the process; may differ.
        versions: the versions of the libraries on which the numbers depend, by name.
        gpus: the GPUs that the process uses, as text of :func:`strategies.topology.gpus.claim`; may differ.
    """

    strategy: str
    mesh: Mapping[str, int] | None
    num_devices: int
    options: Mapping[str, Any] = field(default_factory=dict)
    node: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: str = ""

    def to_text(self) -> str:
        """Returns the request as text for :func:`agreed_nodes` of every process."""
        # Not sorted: the order of a mesh's axes matters in one process.
        return json.dumps(asdict(self), default=str)


def agreed_nodes(texts: Sequence[str]) -> tuple[int, ...]:
    """Returns the node of each process, by rank; raises the same error on all processes if their requests differ.

    Args:
        texts: the requests of all processes, by rank.

    Raises:
        ValueError: the requests differ.
    """
    requests = [json.loads(text) for text in texts]
    for name, what in (("strategy", "strategy"), ("num_devices", "number of devices"), ("mesh", "mesh")):
        mend = " Hide some devices (CUDA_VISIBLE_DEVICES)." if name == "num_devices" else ""
        remedy = f"All processes must make the strategy with the same {what}; they run the same program.{mend}"
        _refuse_others(remedy, name, [each[name] for each in requests])
    for kind, remedy in (
        ("options", "All processes must make the strategy with the same {}."),
        ("versions", "All processes must use the same version of {}: install it on their hosts alike."),
    ):
        for name in dict.fromkeys(name for each in requests for name in each[kind]):
            _refuse_others(remedy.format(name), name, [each[kind].get(name) for each in requests])
    return tuple(each["node"] for each in requests)


def claims(texts: Sequence[str]) -> list[str]:
    """Returns the GPUs that each process uses, by rank, from the requests of all."""
    return [json.loads(text)["gpus"] for text in texts]


def _refuse_others(remedy: str, name: str, values: Sequence[Any]) -> None:
    if any(value != values[0] for value in values):
        raise ValueError(f"{remedy} {differences([[f'{name}={value}'] for value in values])}")
