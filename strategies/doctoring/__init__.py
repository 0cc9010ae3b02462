"""The parts of `strategies.doctor`: the report, and what it looks at."""
