"""ImageNet: a whole training of a residual network on top of keras-strategies, from files on disk."""
