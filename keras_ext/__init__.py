"""What training across devices adds to Keras: callbacks. Layers that split a model are to come; see CHANGELOG.md."""

from keras_ext.callbacks import LearningRateWarmup

__all__ = ["LearningRateWarmup"]
