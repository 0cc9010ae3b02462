"""How much of the all-reduce runs beside the backward pass, from traces of both engines."""
