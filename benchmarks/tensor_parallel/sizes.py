"""Sizes of the transformer block's inputs, beside their width."""

#: Tokens of a sequence.
LENGTH = 64
#: Units of one head.
HEAD_SIZE = 64
