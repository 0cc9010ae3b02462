"""The devices of a job: mesh and cluster as plain values, which process owns which coordinates, cores and threads."""
