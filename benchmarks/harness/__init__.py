"""Common parts of the benchmarks: contenders in separate processes, measured in turn, compared by ratios."""
