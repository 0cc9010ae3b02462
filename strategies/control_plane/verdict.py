"""The reason for the end of a job as text, from what its processes wait for and where they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strategies.control_plane.waits import Wait

#: The exit reason of a process that has left without one.
LOST = "was killed, or its host is gone"
_SAME_PROGRAM = "All ranks have to make the same calls in the same order, with the same model and as many batches."


def diverged(waits: Mapping[int, Sequence[Wait]], where: Mapping[int, str]) -> str:
    """Returns the verdict on processes that wait for each other in different collectives.

    Args:
        waits: the collectives that each process waits for, by rank.
        where: the position of each process in its program, by rank.
    """
    ranks_by_text: dict[str, list[int]] = {}
    for rank, own in sorted(waits.items()):
        ranks_by_text.setdefault(f"{_with_more(own)}, {where.get(rank, 'position unknown')}", []).append(rank)
    # Small groups first: they are more likely to run the wrong program.
    groups = sorted(ranks_by_text.items(), key=lambda item: len(item[1]))
    parts = [
        f"{ranks_in_words(ranks).lower()} wait{'s' if len(ranks) == 1 else ''} for {text}" for text, ranks in groups[:3]
    ]
    more = f"; {len(groups) - 3} more differ" if len(groups) > 3 else ""
    return f"The ranks run different programs: {'; '.join(parts)}{more}. {_SAME_PROGRAM}"


def deserted(rank: int, exit_reason: str, waits: Mapping[int, Sequence[Wait]], where: Mapping[int, str]) -> str:
    """Returns the verdict on a process that has left while others wait for it.

    Args:
        rank: the rank that has left.
        exit_reason: its exit reason; empty if it gave none.
        waits: the collectives that the others wait for, by rank.
        where: the last known position of each process in its program, by rank.
    """
    how = exit_reason or LOST
    last = where.get(rank)
    at = f" {last}" if last and not exit_reason else ""
    waiting = [other for other, own in sorted(waits.items()) if own]
    if not waiting:
        return f"Rank {rank} {how}{at}."
    first = waits[waiting[0]]
    return (
        f"Rank {rank} {how}{at}; {ranks_in_words(waiting).lower()} {_verb(waiting)} for {_with_more(first)}, "
        f"{where.get(waiting[0], 'position unknown')}."
    )


def absent(
    waits: Mapping[int, Sequence[Wait]], where: Mapping[int, str], unanswered: Sequence[int], seconds: float
) -> str:
    """Returns the verdict on processes that did not join a collective in time, although they have not left.

    Args:
        waits: the collectives that processes wait for, by rank.
        where: the positions of the processes that have answered, by rank.
        unanswered: the ranks that have not answered.
        seconds: the time waited.
    """
    waiting = [rank for rank, own in sorted(waits.items()) if own]
    parts = [f"rank {rank} is {text}" for rank, text in sorted(where.items()) if rank not in waiting]
    if unanswered:
        parts.append(_no_answer(unanswered).lower())
    first = waits[waiting[0]] if waiting else []
    verb = "has" if len(waiting) == 1 else "have"
    where_waiting = where.get(waiting[0], "") if waiting else ""
    return (
        f"{ranks_in_words(waiting)} {verb} waited {seconds:g} s for {_with_more(first)}"
        f"{f', {where_waiting}' if where_waiting else ''}{''.join(f'; {part}' for part in parts)}."
    )


def silent(ranks: Sequence[int]) -> str:
    """Returns the verdict on processes that neither answer nor have left, such as ones the engine has given up."""
    return f"{_no_answer(ranks)}."


def _no_answer(ranks: Sequence[int]) -> str:
    verb = "does" if len(ranks) == 1 else "do"
    return f"{ranks_in_words(ranks)} {verb} not answer: stopped, or on a host that is cut off"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Returns "Rank 3", "Ranks 0-2" or "Ranks 0, 2-5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}" if len(run) == 1 else f"{run[0]}{'-' if len(run) > 2 else ', '}{run[-1]}" for run in runs]
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}"


def _verb(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _with_more(waits: Sequence[Wait]) -> str:
    if not waits:
        return "nothing"
    return f"{waits[0]}{f' and {len(waits) - 1} more' if len(waits) > 1 else ''}"
