"""Collectives over Horovod, between processes. Only this package imports Horovod."""

try:
    import horovod.tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Horovod for TensorFlow is not installed. Build and install it: python -m strategies.install_horovod, "
        "which names what else to install."
    ) from error

from strategies.collectives.horovod.collectives import HorovodCollectives
from strategies.collectives.horovod.elastic import ElasticMemory, run_elastic
from strategies.collectives.horovod.rendezvous import joined
from strategies.collectives.horovod.runtime import gathered, implementation, start

__all__ = [
    "ElasticMemory",
    "HorovodCollectives",
    "gathered",
    "implementation",
    "joined",
    "run_elastic",
    "start",
]
