"""Checkpoints of whole training runs: a callback that writes them, and goes on from the last one that is whole.

Its face: `Checkpoints`, `Commits`, the same in memory for elastic training, and the `TrainingPosition` at which a
restored run goes on.
"""

from keras_ext.checkpoints.callback import Checkpoints
from keras_ext.checkpoints.commits import Commits
from keras_ext.checkpoints.position import TrainingPosition

__all__ = ["Checkpoints", "Commits", "TrainingPosition"]
