"""`strategy.check(model, data)` finds the model of each parity case equal, from what the case gives to ``fit``.

Its own reference is the case's model in plain Keras. All cases run with `--parity-all`.
"""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import strategies
from strategies.comparison import Comparison
from tests.strategies.parity.cases import ALL
from tests.strategies.parity.harness import fit_arrays, labels, vectors

pytestmark = pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")

ALWAYS = ("custom train_step with compute_loss", "siamese network", "sparse inputs, Adagrad")
#: Cases that do not call ``fit``, that give it a generator, which is read once, or that compile again and again.
OTHERS = {
    *(name for name in ALL if "custom loop" in name),
    "train_on_batch, test_on_batch, predict_on_batch",
    "one-pass generator",
    "table looked up by positions, every optimizer",
}


class _FitError(Exception):
    """Ends a case that has called ``fit``."""


def check_before_fit(name: str) -> Comparison:
    """Returns the comparison of a case's model on the data that its program gives to ``fit``."""
    case, strategy, found = ALL[name], strategies.MirroredStrategy(["CPU:0", "CPU:1"]), []

    def make() -> Any:
        keras.utils.set_random_seed(7)
        return case.make()

    with strategy.scope():
        model = make()

    def fit(x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> None:
        object.__delattr__(model, "fit")
        is_batched = isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))
        data = x if is_batched else (x, y, kwargs.get("sample_weight"))
        found.append(strategy.check(model, data, steps=2, reference=make))
        raise _FitError

    object.__setattr__(model, "fit", fit)
    with pytest.raises(_FitError):
        (case.run or fit_arrays(vectors(), labels()))(model, strategy)
    return found[0]


@pytest.mark.parametrize(
    "name",
    [
        name if name in ALWAYS else pytest.param(name, marks=pytest.mark.parity_all)
        for name in sorted(ALL.keys() - OTHERS)
    ],
)
def test_every_case_is_found_equal(name: str) -> None:
    keras.backend.clear_session(free_memory=False)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(ALL[name].dtype_policy)
    try:
        found = check_before_fit(name)
    finally:
        keras.config.set_dtype_policy(before)
    assert found.ok, found
