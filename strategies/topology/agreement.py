"""The strategy arguments of every process, exchanged and compared before use. Pure: standard library only.

Processes with different strategies would form groups of different sizes, and wait for each other until a timeout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


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
        values = [each[name] for each in requests]
        if any(value != values[0] for value in values):
            mend = " Hide some devices (CUDA_VISIBLE_DEVICES)." if name == "num_devices" else ""
            raise ValueError(
                f"All processes must make the strategy with the same {what}; they run the same program.{mend} "
                f"{_by_rank(values)}"
            )
    for kind, asked in (
        ("options", "All processes must make the strategy with the same {}."),
        ("versions", "All processes must use the same version of {}: install it on their hosts alike."),
    ):
        for name in dict.fromkeys(name for each in requests for name in each[kind]):
            values = [each[kind].get(name) for each in requests]
            if any(value != values[0] for value in values):
                raise ValueError(f"{asked.format(name)} {_by_rank(values)}")
    return tuple(each["node"] for each in requests)


def claims(texts: Sequence[str]) -> list[str]:
    """Returns the GPUs that each process uses, by rank, from the requests of all."""
    return [json.loads(text)["gpus"] for text in texts]


def _by_rank(values: Sequence[Any]) -> str:
    return "Received: " + "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values)) + "."
