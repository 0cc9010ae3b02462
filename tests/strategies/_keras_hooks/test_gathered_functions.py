"""Losses and metrics that look at several rows have the numbers of one device; others gather nothing."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_ext
import strategies
from tests.releases import marks_of, wrong_losses_of_outputs
from tests.strategies.parity.harness import TOLERANCE

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((11, 3)).astype("float32")
Y = {name: RANDOM.integers(0, 2, (11, 2)).astype("float32") for name in ("one", "two")}
WEIGHTS = RANDOM.random(11).astype("float32") + 0.5


def soft_f1(y_true: Any, y_pred: Any) -> Any:
    y_pred = ops.sigmoid(y_pred)
    return 1 - 2 * ops.sum(y_true * y_pred) / (ops.sum(y_true) + ops.sum(y_pred) + 1)


def contrastive(y_true: Any, y_pred: Any) -> Any:
    """Returns a value for each row, which compares it with all rows."""
    likeness = ops.matmul(y_pred, ops.transpose(y_pred))
    same = ops.cast(ops.equal(y_true[:, :1], ops.transpose(y_true[:, :1])), "float32")
    return ops.logsumexp(likeness, axis=1) - ops.sum(same * likeness, axis=1) / ops.sum(same, axis=1)


def balanced(y_true: Any, y_pred: Any) -> Any:
    """Returns a value for each row, weighted by the share of its class in the batch."""
    return ops.mean(ops.square(y_true - y_pred), axis=-1) * (1.5 - ops.mean(y_true[:, 0]))


def rmse(y_true: Any, y_pred: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


def plain(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.abs(y_true - y_pred), axis=-1)


def trained(
    strategy: Any,
    losses: dict[str, Any],
    metrics: Any = None,
    pipeline: dict[str, Any] | None = None,
    **settings: Any,
) -> list[Any]:
    """Returns logs and weights of a model of two outputs, trained and tested with batches that divide unevenly."""
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(5, "tanh")(inputs)
        outputs = {name: keras.layers.Dense(2, name=name)(hidden) for name in Y}
        model = keras.Model(inputs, outputs)
        if pipeline is not None:
            model = keras_ext.PipelineModel(model, partition="uniform", **pipeline)
        model.compile(
            keras.optimizers.SGD(0.1), losses, loss_weights={"one": 0.5, "two": 2.0}, metrics=metrics, **settings
        )
    data = {"y": Y, "sample_weight": {"one": WEIGHTS, "two": WEIGHTS}}
    if any(loss is soft_f1 for loss in losses.values()):
        del data["sample_weight"]
    history = model.fit(X, **data, batch_size=5, epochs=2, shuffle=False, verbose=0).history
    tested = model.evaluate(X, Y, batch_size=7, verbose=0, return_dict=True)
    return [history[name] for name in sorted(history)] + [tested[name] for name in sorted(tested)] + model.get_weights()


CASES = {
    "scalar": ({"one": soft_f1, "two": keras.losses.Dice()}, {"one": [rmse, plain], "two": soft_f1}),
    "per row": ({"one": contrastive, "two": balanced}, {"one": [balanced, "mae"], "two": contrastive}),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks_of(case)) for case in CASES])
def test_they_are_those_of_one_device(case: str, caplog: pytest.LogCaptureFixture) -> None:
    losses, metrics = CASES[case]
    # Keras weights the losses of several outputs by rows in eager execution, but not in graphs.
    expected = {eager: trained(None, losses, metrics, run_eagerly=eager) for eager in (False, True)}
    worlds: list[dict[str, Any]] = [{}, {"run_eagerly": True}]
    if case == "scalar":
        worlds.append({"jit_compile": True, "steps_per_execution": 2})
    for settings in worlds:
        with caplog.at_level(logging.INFO, "strategies"):
            # The last batches have one row and four: replicas without rows train, and are tested.
            devices = [f"CPU:{k}" for k in range(5)]
            found = trained(strategies.MirroredStrategy(devices), losses, metrics, **settings)
        for one, other in zip(found, expected["run_eagerly" in settings], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE, err_msg=str(settings))
    said = [record.getMessage() for record in caplog.records if "looks at several rows" in record.getMessage()]
    assert all("bytes for each row of the batch" in text for text in said)
    assert said
    assert not any("plain" in text or "mae" in text for text in said)


@wrong_losses_of_outputs()
@pytest.mark.parametrize(
    ("replicas", "number"), [(3, 3), *(pytest.param(*each, marks=pytest.mark.parity_all) for each in ((1, 3), (3, 1)))]
)
def test_in_pipelines_that_have_all_rows_before_the_backward_pass(replicas: int, number: int) -> None:
    beside = {"one": keras.losses.MeanSquaredError(reduction="sum"), "two": contrastive}
    masked = {"one": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), "two": balanced}
    for losses, metrics in (*CASES.values(), (beside, {"one": [rmse], "two": ["mae"]}), (masked, {})):
        expected = trained(None, losses, metrics)
        devices = [f"CPU:{k}" for k in range(2 * replicas)]
        strategy = strategies.MirroredStrategy(devices, mesh={"data": replicas, "pipe": 2})
        found = trained(strategy, losses, metrics, {"num_microbatches": number, "schedule": "gpipe"})
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE, err_msg=str(losses))


def test_in_micro_batches_the_way_out_is_reported() -> None:
    with strategies.MirroredStrategy(mesh={"data": 4, "pipe": 2}).scope():
        layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model = keras_ext.PipelineModel(model, partition="uniform", num_microbatches=2)
        model.compile("sgd", balanced)
    with pytest.warns(
        strategies.DifferenceWarning, match=r"'balanced' looks at several rows.*gpipe.*num_microbatches=1"
    ):
        model.fit(X, Y["one"], batch_size=11, verbose=0)
