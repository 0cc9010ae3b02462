"""Compares predicted steps of `keras_ext.training_plan` with measured ones, on meshes of this machine's devices."""
