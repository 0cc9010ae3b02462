"""One training step: runs replicas, reduces their results, and holds the variables that they share."""
