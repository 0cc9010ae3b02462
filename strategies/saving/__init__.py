"""Saving and loading weights: the rank that writes, files that are complete, sums that are completed before a save."""
