"""The gain of models in stages, in time and in memory."""
