"""Exchange of tensors along the axes of a mesh: one interface, one module for each transport."""

from strategies.collectives.base import Collectives
from strategies.collectives.loopback import LoopbackCollectives
from strategies.collectives.transport import Channel

__all__ = ["Channel", "Collectives", "LoopbackCollectives"]
