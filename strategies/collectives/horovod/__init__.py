"""Collectives by Horovod, between processes. The only room that imports it."""

from strategies.collectives.horovod.collectives import HorovodCollectives, start

__all__ = ["HorovodCollectives", "start"]
