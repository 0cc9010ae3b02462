"""Common parts of the benchmarks: contenders in processes of their own, measured in turn, compared by ratios."""
