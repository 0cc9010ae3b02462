"""The share of the all-reduce that overlaps with the backward pass, from traces of both engines."""
