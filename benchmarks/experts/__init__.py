"""Mixtures of experts that compute only the routed tokens, against dense banks, in training steps per second."""
