"""Sizes of the transformer block's inputs, besides their width."""

#: Tokens of a sequence.
LENGTH = 64
#: Units of one head.
HEAD_SIZE = 64
