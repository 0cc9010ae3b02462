"""Checkpoints of whole training runs: a callback writes them, and resumes from the last complete one.

It exports `Checkpoints`; `Commits`, the same in memory for elastic training; and `TrainingPosition`, where a restored
run continues.
"""

from keras_ext.checkpoints.callback import Checkpoints, TrainingPosition
from keras_ext.checkpoints.commits import Commits

__all__ = ["Checkpoints", "Commits", "TrainingPosition"]
