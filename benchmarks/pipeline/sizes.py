"""Sizes that the models have in common, beside those that flags set."""

#: Layers of the dense model, and of the one that measures memory.
NUM_DENSE = 8
NUM_LARGE = 16
#: Channels of the latter: its weights are small.
NUM_CHANNELS = 16
#: Of the transformer.
LENGTH = 16
WIDTH = 64
NUM_HEADS = 4
VOCABULARY = 64
#: A stage's forward pass sleeps once, its backward pass twice as long.
SLEEPS_OF_A_STAGE = 3


def bounds(count: int, num_stages: int) -> list[int]:
    """Returns the index at which each stage begins, and the last one ends, of so many layers or blocks."""
    return [count * k // num_stages for k in range(num_stages + 1)]
