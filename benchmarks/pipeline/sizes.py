"""Common sizes of the models, besides those set by flags."""

#: Layers of the dense model, and of the model that measures memory.
NUM_DENSE = 8
NUM_LARGE = 16
#: Channels of the model that measures memory: its weights are small.
NUM_CHANNELS = 16
#: Tokens in a sequence of the transformer.
LENGTH = 16
WIDTH = 64
NUM_HEADS = 4
VOCABULARY = 64
#: A stage's forward pass sleeps once, its backward pass twice as long: the number of sleeps of a stage.
SLEEPS_OF_A_STAGE = 3


def bounds(count: int, num_stages: int) -> list[int]:
    """Returns where each stage begins and the last one ends, as indices into `count` layers or blocks."""
    return [count * k // num_stages for k in range(num_stages + 1)]
