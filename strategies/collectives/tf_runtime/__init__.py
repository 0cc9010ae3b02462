"""Collectives over TensorFlow's collective runtime, between devices and processes."""

from strategies.collectives.tf_runtime.collectives import TensorFlowCollectives
from strategies.collectives.tf_runtime.start import bound_waits

__all__ = ["TensorFlowCollectives", "bound_waits"]
