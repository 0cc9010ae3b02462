"""The share of the all-reduce that runs beside the backward pass, from traces of both engines."""
