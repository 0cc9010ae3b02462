"""Strategies that train Keras 3 models on TensorFlow across devices and processes, with the numbers of one device."""

from strategies.horovod import HorovodStrategy
from strategies.mirrored import MirroredStrategy
from strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy

__all__ = ["HorovodStrategy", "MirroredStrategy", "MultiWorkerMirroredStrategy"]
