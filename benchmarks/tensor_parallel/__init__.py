"""The gain of layers that are split over devices."""
