"""`strategies.MirroredStrategy` against TensorFlow's and against plain Keras, in images per second."""
