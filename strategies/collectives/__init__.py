"""Exchange of tensors along the axes of a mesh: one interface, one module for each transport."""

from strategies.collectives.base import Collectives
from strategies.collectives.channel import Channel
from strategies.collectives.loopback import LoopbackCollectives

__all__ = ["Channel", "Collectives", "LoopbackCollectives"]
