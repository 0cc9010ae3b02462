"""Comparison of clocks, on numbers; between processes in `tests/strategies/processes/spanning_pipe.py`."""

import numpy as np
import pytest

from strategies.collectives.clocks import difference


def test_a_clock_that_is_behind() -> None:
    """The own clock is 100 s late. In true time both leave 0.01 s, and once 0.002 s, after the last has entered."""
    entered = np.array([[0.0, 1.0, 2.0], [0.005, 0.9, 2.001]])
    left = entered.max(axis=0) + np.array([0.01, 0.01, 0.002])
    own, other = [entered[0] - 100, left - 100], [entered[1], left]
    offset, error = difference(own, other)
    assert offset == pytest.approx(100, abs=error)
    assert error == pytest.approx(0.0025, abs=0.0005)
    assert difference(other, own)[0] == pytest.approx(-offset)
    assert difference(own, own)[0] == 0
