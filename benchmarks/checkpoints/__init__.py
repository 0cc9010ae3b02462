"""Measures how long saving a checkpoint stops training, and how fast ranks write."""
