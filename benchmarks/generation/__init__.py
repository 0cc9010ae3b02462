"""Benchmark of text generation by tasks whose layers are split or in stages."""
