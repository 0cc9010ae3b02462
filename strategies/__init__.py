"""Strategies that train Keras 3 models on TensorFlow across devices and processes, with the numbers of one device."""

from strategies.horovod import HorovodStrategy
from strategies.memory import bytes_per_device
from strategies.mirrored import MirroredStrategy
from strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from strategies.parts import ReplicaParts, replica_parts
from strategies.restoring import load_on_all, sum_accumulated
from strategies.seeds import global_state_kept
from strategies.splitting import SplitWeight, joined, saved_as
from strategies.waiting import SecondsWaited, seconds_waited, watch_communication

__all__ = [
    "HorovodStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ReplicaParts",
    "SecondsWaited",
    "SplitWeight",
    "bytes_per_device",
    "global_state_kept",
    "joined",
    "load_on_all",
    "replica_parts",
    "saved_as",
    "seconds_waited",
    "sum_accumulated",
    "watch_communication",
]
