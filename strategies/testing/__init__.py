"""Tools for testing training programs, also a user's own: `strategies.testing.faults` injects faults into a run."""
