"""Measures how long the first step of `model.fit` takes, in which the step is traced and compiled."""
