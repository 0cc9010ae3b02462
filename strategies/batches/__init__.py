"""Splits global batches among processes and replicas, prefetches them, and weights their rows in sums and means."""
