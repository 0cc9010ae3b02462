"""The rank info of processes that join a job, and the error if they do not."""

from __future__ import annotations

from dataclasses import dataclass


class JoinError(ValueError):
    """The processes of a job did not join; the message names the missing ones or the reason, and the fix."""


@dataclass(frozen=True)
class RankInfo:
    """The rank info of this process in a job.

    Attributes:
        rank: 0 to `world_size` - 1.
        world_size: the number of processes.
        where: names this process in messages of the others, as in "rank 1 on node-b".
    """

    rank: int
    world_size: int
    where: str = ""
