"""Well-known programs of TensorFlow's and Horovod's documentation, written for keras-strategies."""
