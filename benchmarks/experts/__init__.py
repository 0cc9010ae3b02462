"""Mixtures of experts that compute their own tokens only, beside dense banks, in training steps per second."""
