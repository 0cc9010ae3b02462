"""Layers whose weights are split over the devices of the mesh axis "tensor"."""
