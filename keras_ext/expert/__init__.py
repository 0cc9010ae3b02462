"""Mixtures of experts: feed-forward networks of which each token takes a few.

`MixtureOfExperts` is the layer, `replace_experts` puts sparse computation in the place of dense banks of other models,
`track_expert_load` a metric of loads in the logs, `ExpertLoadHistory` the load of each expert for TensorBoard.
In files both are plain Keras, or what the model's own library makes. The guide is README.md beside this file.
"""

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.expert.load_history import ExpertLoadHistory
from keras_ext.expert.replace import replace_experts
from keras_ext.expert.tracking import track_expert_load

__all__ = ["ExpertLoadHistory", "MixtureOfExperts", "replace_experts", "track_expert_load"]
