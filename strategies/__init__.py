"""Strategies that train Keras 3 models on TensorFlow across devices and processes, with the numbers of one device."""

from strategies.engine.waiting import SecondsWaited, seconds_waited
from strategies.horovod import HorovodStrategy
from strategies.mirrored import MirroredStrategy
from strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from strategies.replica.memory import bytes_per_device
from strategies.saving.restoring import load_on_all, sum_accumulated

__all__ = [
    "HorovodStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "SecondsWaited",
    "bytes_per_device",
    "load_on_all",
    "seconds_waited",
    "sum_accumulated",
]
