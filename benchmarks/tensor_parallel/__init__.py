"""The speedup of layers that are split over devices."""
