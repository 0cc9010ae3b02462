"""The engine of a strategy, and TensorFlow's interface to it.

`engine.Engine` puts the parts of a step (`strategies.steps`) and the sharding together. `replicated` and
`multi_worker` are TensorFlow's ``StrategyExtended`` over it, with `variable_makers`. `strategy` has the properties that
all strategies have.
"""
