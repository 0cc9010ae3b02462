"""What training across devices adds to Keras: layers whose weights are split over devices, and callbacks."""

from keras_ext.callbacks import LearningRateWarmup
from keras_ext.memory import MemoryReport, memory_report
from keras_ext.tensor.dense import ColumnParallelDense, RowParallelDense

__all__ = ["ColumnParallelDense", "LearningRateWarmup", "MemoryReport", "RowParallelDense", "memory_report"]
