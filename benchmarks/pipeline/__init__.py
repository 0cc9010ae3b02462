"""What models in stages gain in time and in memory."""
