"""What layers split over devices gain."""
