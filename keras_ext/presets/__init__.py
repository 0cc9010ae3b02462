"""KerasHub's presets, whose weights go straight from their files into the shards of a split model."""

from keras_ext.presets.from_preset import from_preset

__all__ = ["from_preset"]
