"""Faults of one rank of two, over both engines: which processes end, after how long, and with which message."""
