"""The reports of ranks and of launchers, from which the status of a job is made."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

from strategies.control_plane.message import Message

#: The keys of reports in a store: of ranks by rank, of launchers by node rank.
RANK, LAUNCHER = "rank", "launcher"


@dataclass(frozen=True)
class RankReport(Message):
    """The report of one rank; None for what it does not know.

    Args:
        rank, world_size: its rank, and the number of ranks.
        host, pid: its host and process.
        call: the method of the model that runs, such as "fit"; empty between calls.
        epoch, epochs: the epoch of `fit`, from 1, and the epoch after which `fit` ends; 0 without epochs.
        step, steps_per_epoch: the finished steps of the epoch, and its number of steps; None if it is not known.
        total_steps: the finished training steps of the process, over all calls of `fit`.
        fraction: the finished share of `fit`, 0 to 1.
        seconds_left: the time that `fit` still takes at its speed so far.
        unit: the unit of `units_per_second`, such as "rows", in the plural.
        units_per_second: of the whole job, over the last ten seconds.
        steps_per_second, peak_steps_per_second: the same in steps, without a pause before; the most so far.
        waiting_input: the share of the last seconds in which the rank waited for its next batch.
        waiting_others: the share of the last moments, 1.25 seconds, in which one of its collectives was pending.
        waiting_others_longer: the same of the last 20 seconds; None until there are as many.
        waiting_is_current: False if these samples are one second old or less, as where counters are on GPUs.
        memory_bytes, peak_memory_bytes: of the process, in the host's memory.
        device_memory_bytes, peak_device_memory_bytes: of its GPUs.
        can_record: True while it can record a trace, which `fit` does.
        checkpoint: the last path that was saved; empty if there is none.
        checkpoint_step: `total_steps` of the state that was saved.
        checkpoint_age_seconds: the time since then.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    call: str = ""
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps_per_epoch: int | None = None
    total_steps: int = 0
    fraction: float | None = None
    seconds_left: float | None = None
    unit: str = "rows"
    units_per_second: float | None = None
    steps_per_second: float | None = None
    peak_steps_per_second: float = 0.0
    waiting_input: float | None = None
    waiting_others: float | None = None
    waiting_others_longer: float | None = None
    waiting_is_current: bool = True
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    device_memory_bytes: int | None = None
    peak_device_memory_bytes: int | None = None
    can_record: bool = False
    checkpoint: str = ""
    checkpoint_step: int | None = None
    checkpoint_age_seconds: float | None = None


class JobState(enum.StrEnum):
    """The states of a job, as a launcher sees them."""

    RUNNING = "running"
    #: Its ranks are ending, because one has failed or the launcher was asked to stop.
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True)
class RankProcess(Message):
    """The process of a rank, as its launcher sees it.

    Args:
        rank, pid: the rank and its process.
        is_stopped: True if it is stopped by a signal, such as SIGSTOP.
        status: the exit code, or minus the signal that killed it; None while it runs.
    """

    rank: int
    pid: int
    is_stopped: bool = False
    status: int | None = None


@dataclass(frozen=True)
class LauncherReport(Message):
    """The report of the launcher of one node.

    Args:
        node: the name of the node, for people.
        state: the state of its ranks.
        world_size: the number of ranks of the job.
        num_restarts, max_restarts: the restarts of the job so far, and their limit.
        processes: the processes of this node.
        began: the time at which the ranks of this round were started, as `time.time` gives it.
        reason: the reason for the last restart; empty before the first one.
    """

    node: str
    state: JobState
    world_size: int
    num_restarts: int
    max_restarts: int
    processes: tuple[RankProcess, ...]
    began: float
    reason: str = ""


def to_text(message: Message) -> str:
    """Returns a report as text for a store."""
    # Not `to_json`, which copies: ranks report twice a second.
    return json.dumps(message, default=vars)


def from_text(text: str) -> Any:
    """Returns the JSON value in a text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
