"""Variables that are replaced by their gradient: their detection, and the combination of several gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from strategies.replica.overwritten import is_overwritten, maximum, no_maximum, note_owner


class Owner:
    overwrite_with_gradient = False


def test_a_variable_is_what_its_owner_is_at_the_time_of_asking() -> None:
    owner, variable = Owner(), tf.Variable(1.0)
    assert not is_overwritten(variable)
    note_owner(variable, owner)
    assert not is_overwritten(variable)
    owner.overwrite_with_gradient = True
    assert is_overwritten(variable)
    assert is_overwritten(owner)
    del owner
    assert not is_overwritten(variable)
    assert not is_overwritten(None)


def test_joined_by_the_maximum_of_each_number() -> None:
    np.testing.assert_array_equal(maximum([tf.constant([1.0, 5.0]), None, tf.constant([3.0, 2.0])]), [3.0, 5.0])
    assert maximum([None, None]) is None
    variable = tf.Variable([-2.0, 0.0])
    np.testing.assert_array_equal(maximum([variable, no_maximum(variable)]), variable)
