"""Tools for testing training programs, also a user's own: `strategies.testing.faults` hurts a run on purpose."""
