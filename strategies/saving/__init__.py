"""Weights in files and back: who writes, which files have arrived, sums that are complete before they are saved."""
