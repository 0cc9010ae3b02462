"""Short texts between the processes of a job, apart from its tensors: who has joined, what each runs, who has left.

Standard library only. The processes join once (`joining`, over a `rendezvous`), at rank 0's address, and keep these
connections (`channel`) for their lifetime, as a `key_value_store`. A `member` posts where it is in its program and what
it waits for; from that all processes find who is missing, has left or runs another program (`findings`, `waits`,
`verdict`). The launchers use the same `channel` and `rendezvous`.
"""

from strategies.control_plane.joining import join_job
from strategies.control_plane.key_value_store import KeyValueStore
from strategies.control_plane.listening import listen, port_problem
from strategies.control_plane.member import DistributedError, Member
from strategies.control_plane.position import Position
from strategies.control_plane.rank_info import JoinError, RankInfo
from strategies.control_plane.waits import Wait

__all__ = ["DistributedError", "JoinError", "KeyValueStore", "Member", "Position", "RankInfo", "Wait"]
__all__ += ["join_job", "listen", "port_problem"]
