"""Collectives by Horovod, between processes. The only room that imports it."""

try:
    import horovod.tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Horovod for TensorFlow is not installed here. Build and install it: python -m strategies.install_horovod"
    ) from error

from strategies.collectives.horovod.collectives import HorovodCollectives
from strategies.collectives.horovod.rendezvous import told_by_all
from strategies.collectives.horovod.runtime import gathered, implementation, start

__all__ = ["HorovodCollectives", "gathered", "implementation", "start", "told_by_all"]
