"""`strategies.MirroredStrategy` beside TensorFlow's and beside plain Keras, in images per second."""
