"""Compares the programs of all processes before the first step: a difference is an error on all of them.

Lines of text describe a program. Processes exchange a digest of the lines, and the lines only if the digests differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from strategies.collectives.strings import gather_texts
from strategies.engine.engine import Engine

_MOST_SHOWN = 3
_ANY = re.compile("")


def compare(engine: Engine, lines: Sequence[str], remedy: str = "", where: re.Pattern[str] = _ANY) -> None:
    """Compares lines between all processes of a job. All processes call it, the same number of times.

    Args:
        engine: the engine of a strategy over several processes.
        lines: the lines that have to be equal, most informative for the user first.
        remedy: a fix, which the error names if a line that differs matches `where`.
        where: a pattern of lines, see `remedy`.

    Raises:
        ValueError: lines differ; raised on all processes, with each rank's differing lines.
    """
    lines_by_rank = _differing(engine, list(lines))
    if lines_by_rank is not None:
        raise ValueError(difference(lines_by_rank, remedy, where))


def difference(lines_by_rank: Sequence[Sequence[str]], remedy: str = "", where: re.Pattern[str] = _ANY) -> str:
    """Returns the error message about differing lines, given the lines of all processes by rank; see `compare`."""
    # Lines that all processes have, in any order, are left out.
    common = set(lines_by_rank[0]).intersection(*lines_by_rank[1:])
    own = [[line for line in lines if line not in common] for lines in lines_by_rank]
    same: dict[str, list[int]] = {}
    for rank, lines in enumerate(own):
        more = f"; and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
        same.setdefault("; ".join(lines[:_MOST_SHOWN]) + more or "none of these", []).append(rank)
    received = " | ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {text}" for text, ranks in same.items()
    )
    way_out = f"{remedy} " if remedy and any(where.match(line) for lines in own for line in lines) else ""
    return (
        "The processes run different programs. All of them have to make the same model, compile it alike and give it "
        f"the same data, whatever their rank. {way_out}Received, where they differ: {received}."
    )


def _differing(engine: Engine, lines: list[str]) -> list[list[str]] | None:
    if engine.member.store is not None:
        return engine.member.differing(lines)
    group = engine.process_group
    if group.num_processes == 1:
        return None
    text = "\n".join(lines)
    digest = np.frombuffer(hashlib.sha1(text.encode()).digest()[:16], np.int64)
    gathered = np.asarray(group.gather(tf.constant(digest[np.newaxis]), equal_sizes=True))
    return None if len(np.unique(gathered, axis=0)) == 1 else [each.split("\n") for each in gather_texts(text, group)]
