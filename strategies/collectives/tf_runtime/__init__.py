"""Collectives over TensorFlow's collective runtime, between devices and processes."""

from strategies.collectives.tf_runtime.collectives import TensorFlowCollectives

__all__ = ["TensorFlowCollectives"]
