"""Strategies that train Keras 3 models on TensorFlow across devices, with the numbers of one device."""
