"""Checkpoints of whole training runs: a callback writes them, and resumes from the last complete one.

It exports `Checkpoints`; `Commits`, the same in memory for elastic training; `TrainingPosition`, where a restored run
continues; and `load_weights`, which takes files of many formats.
"""

from keras_ext.checkpoints.callback import Checkpoints
from keras_ext.checkpoints.commits import Commits
from keras_ext.checkpoints.load_weights import load_weights
from keras_ext.checkpoints.position import TrainingPosition

__all__ = ["Checkpoints", "Commits", "TrainingPosition", "load_weights"]
