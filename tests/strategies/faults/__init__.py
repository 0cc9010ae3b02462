"""Faults of one rank of two, over both engines: who ends, after how long, and with which words."""
