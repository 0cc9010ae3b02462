"""The parts of one training step over replicas: what runs it, reduces its results, and holds its variables.

`step.Steps` runs a function once per local replica (`layout`, `context`). `reductions` sum what replicas computed,
`gradient_sync` their gradients, `outputs` their results; `updates` then updates the variables. A variable has one
component per replica: state that replicas write (`variables`), metrics (`metric_variables`), accumulators
(`partial_sums`), or one on a parameter device (`central`). The engine puts these parts together, with `sharding`.
"""
