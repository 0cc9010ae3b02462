"""Handwritten digits: the smallest whole program on top of keras-strategies."""
