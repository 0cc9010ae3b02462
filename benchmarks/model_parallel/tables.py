"""Tables of the measurements: ratios with their targets, and lower bounds for each contender. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from harness import ratios
from harness.ratios import Comparison
from harness.turns import row_of

from model_parallel.bounds import least_ms, traffic
from model_parallel.cases import NUM_PARTS, Case, Measure, Turn
from model_parallel.contenders import KINDS

# Release criteria: a pipeline's time, and a split model's speedup, relative to torch's.
TARGETS_OF_TIME: Mapping[str, float] = {"multi_worker": 0.85, "horovod": 1.1}
TARGETS_OF_SPEEDUP: Mapping[str, float] = {"multi_worker": 1.0}

Measured = Mapping[str, Sequence[float]]


def _values(name: str, case: Case, measure: Measure, measured: Measured) -> Sequence[float]:
    return measured[row_of(KINDS[name].row, Turn(case, measure))]


def speedup(name: str, case: Case) -> str:
    """Returns the row of a contender's speedup in a case over its own library on one device."""
    return f"{row_of(KINDS[name].row, case)}, speedup"


def speedups(cases: Sequence[Case], measured: Measured, names: Collection[str]) -> dict[str, list[float]]:
    """Returns each contender's speedup in each case over its own library on one device, round by round."""
    return {
        speedup(name, case): [
            alone / own
            for alone, own in zip(
                _values(KINDS[name].alone, case, "step", measured), _values(name, case, "step", measured), strict=True
            )
        ]
        for case in cases
        for name in names
        if KINDS[name].alone in names
    }


def comparisons(cases: Sequence[Case], names: Collection[str]) -> list[Comparison]:
    """Returns the comparisons between the contenders in `names`."""
    ours = [name for name in ("multi_worker", "horovod", "one_process") if name in names]
    found = []
    for case in cases:
        row = {name: row_of(kind.row, Turn(case, "step")) for name, kind in KINDS.items()}
        peers = ("torch_split", "raw", "one_process")
        pairs = [(name, peer) for peer in peers for name in ours if name != peer]
        pairs.append(("raw", "torch_split"))
        for name, peer in pairs:
            if {name, peer} <= set(names):
                target = TARGETS_OF_TIME.get(name) if (case.axis, peer) == ("pipe", "torch_split") else None
                found.append(Comparison(f"time of {name} / {peer}: {case.label}", row[name], row[peer], target, True))
        if {"plain", "torch", "torch_split"} <= set(names):
            found += [
                Comparison(
                    f"speedup of {name} / of torch_split: {case.label}",
                    speedup(name, case),
                    speedup("torch_split", case),
                    TARGETS_OF_SPEEDUP.get(name) if case.axis == "tensor" else None,
                )
                for name in ours
            ]
    return found


def bounds_table(case: Case, measured: Measured, names: Sequence[str]) -> str:
    """Returns a table with a row per contender: its time, its core's time, its messages and the lower bound."""
    header = (
        case.label,
        "ms/step",
        "core of one process, ms",
        "of one device",
        f"speedup, of {NUM_PARTS}",
        "messages each process sends",
        "latency, ms",
        "core, ns/byte",
        "bound, ms",
        "time / bound",
    )
    return ratios.markdown(header, [_bounds_row(name, case, measured, names) for name in names])


def _bounds_row(name: str, case: Case, measured: Measured, names: Collection[str]) -> list[str]:
    def median(name: str, measure: Measure) -> float:
        return statistics.median(_values(name, case, measure, measured))

    kind, sent, own = KINDS[name], traffic(case), median(name, "step")
    of_alone, of_messages, of_bound = [""] * 2, ["none", "", ""], [""] * 2
    if kind.alone in names:
        alone = median(kind.alone, "step")
        least = least_ms(case, alone, median(name, "latency"), median(name, "core"))
        of_alone = [f"{own / alone:.3f}", f"{alone / own:.3f}"]
        of_bound = [f"{least:.4g}", f"{own / least:.3f}"]
    if kind.num_processes > 1:
        of_messages = [
            f"{sent.num_messages} of {sent.message_bytes / 1e6:.3g} MB",
            f"{median(name, 'latency'):.3f}",
            f"{median(name, 'core') / sent.message_bytes * 1e6:.2f}",
        ]
    return [kind.row, f"{own:.4g}", f"{median(name, 'busy'):.4g}", *of_alone, *of_messages, *of_bound]
