"""Writes the digits of scikit-learn into a file that train.py reads: `python make_digits.py digits.npz`."""

import sys

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
# The grey values of scikit-learn end at 16.
np.savez(sys.argv[1], images=digits.images * (255 / 16), labels=digits.target)
