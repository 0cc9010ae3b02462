"""What the transformer block's inputs look like beside their width."""

#: Tokens of a sequence.
LENGTH = 64
#: Units of one head.
HEAD_SIZE = 64
