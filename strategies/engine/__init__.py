"""One training step: running replicas, reducing what they return, and the variables that they share."""
