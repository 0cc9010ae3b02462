"""Resident memory of each rank of a model that spans processes, while it builds, saves, loads and trains."""
