"""What the benchmarks share: contenders in processes of their own, measured in turn, compared by ratios."""
