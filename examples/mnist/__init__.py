"""Handwritten digits: the smallest complete program on top of keras-strategies."""
