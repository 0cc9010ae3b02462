"""Slurm's lists of hosts and counts, and the ports of a step. Pure: standard library only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

#: Ports of the processes of a Slurm node begin here, as in TensorFlow's SlurmClusterResolver, in ranges of this size.
FIRST_PORT = 8888
_PORTS_OF_A_STEP = 32
# The ports end at 25272: below our launcher's on the first node, and below the ephemeral ones.
_NUM_PORT_RANGES = 512


def first_port(variables: Mapping[str, str]) -> int:
    """Returns the first port of this step: jobs, and steps of a job, may share a node, and all ranks read the same."""
    job, step = (
        next((int(variables[name]) for name in names if variables.get(name, "").isdigit()), 0)
        for names in (("SLURM_JOB_ID", "SLURM_JOBID"), ("SLURM_STEP_ID", "SLURM_STEPID"))
    )
    # A prime number of ranges between the steps of a job: those of the next jobs lie between them.
    return FIRST_PORT + _PORTS_OF_A_STEP * ((job + 211 * step) % _NUM_PORT_RANGES)


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expands a list of host names such as ``node[01-03,7],gpu1``, in its order.

    Source: Slurm's manual page of ``scontrol show hostnames``.

    Args:
        text: names and bracketed ranges, separated by commas; leading zeros set the width. Several brackets
            in one name give all combinations. An empty text has no names.

    Raises:
        ValueError: brackets that do not match, or an invalid range.
    """
    # A comma separates names only outside of brackets.
    names = re.findall(r"(?:\[[^\[\]]*\]|[^,\[\]])+", text)
    if ",".join(names) != text.strip(",") or any(not name.strip() for name in names):
        raise ValueError(f"Expected a list of host names such as 'node[01-03,7],gpu1'. Received: {text!r}.")
    return tuple(host for name in names for host in _expand_name(name.strip(), text))


def expand_counts(text: str) -> tuple[int, ...]:
    """Expands a list of counts such as ``2(x3),1``, to ``(2, 2, 2, 1)`` (Slurm's manual page of srun).

    Raises:
        ValueError: anything else.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", item)
        if not match:
            raise ValueError(f"Expected a list of counts such as '2(x3),1'. Received: {text!r}.")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def _expand_name(name: str, text: str) -> list[str]:
    pieces = re.split(r"(\[[^\[\]]*\])", name)
    choices = [_expand_ranges(p[1:-1], text) if p.startswith("[") else [p] for p in pieces]
    return ["".join(parts) for parts in itertools.product(*choices)]


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        if not match or int(match[1]) > int(match[2] or match[1]):
            raise ValueError(f"{item!r} is neither a number nor an ascending range of numbers. Received: {text!r}.")
        width = len(match[1])
        numbers += [f"{n:0{width}d}" for n in range(int(match[1]), int(match[2] or match[1]) + 1)]
    return numbers
