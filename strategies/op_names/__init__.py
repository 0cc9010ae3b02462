"""The names of operations by which a profile of a running step shows collectives and the passes of pipeline stages.

`names` is pure; `scopes` names TensorFlow's operations. `strategies.tracing` reads the names.
"""
