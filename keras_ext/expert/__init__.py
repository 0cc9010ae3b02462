"""Mixtures of experts: each token is routed to a few of many feed-forward networks.

`MixtureOfExperts` is the layer. `replace_experts` replaces the dense expert computation of other models by a sparse
one. `track_expert_load` adds a load metric to the logs, and `ExpertLoadHistory` writes the load of each expert to
TensorBoard. Saved models contain plain Keras layers, or those of the model's own library. The guide is
`docs/guides/experts.md`.
"""

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.expert.load_history import ExpertLoadHistory
from keras_ext.expert.replace import replace_experts
from keras_ext.expert.tracking import track_expert_load

__all__ = ["ExpertLoadHistory", "MixtureOfExperts", "replace_experts", "track_expert_load"]
