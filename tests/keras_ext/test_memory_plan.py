"""The plan of a model's memory equals the report of the model once made, and planning allocates no such memory."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from keras_ext.memory import resident_bytes
from strategies.engine.strategy import Sharded

KINDS = ("weights", "gradients", "optimizer", "gathered", "activations", "together")
#: The models of these tests are small: units of 4 MiB hold four kernels.
WIDTH = 512
OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "Adam": keras.optimizers.Adam,
    "SGD, momentum": lambda: keras.optimizers.SGD(momentum=0.9),
    "Adam, averages": lambda: keras.optimizers.Adam(use_ema=True),
}
WAYS: tuple[tuple[Sharded, int | None], ...] = (
    (None, None),
    ("optimizer", None),
    ("optimizer", 2),
    ("weights", None),
    ("weights", 2),
)


def dense(optimizer: keras.Optimizer, num_layers: int = 10, width: int = WIDTH) -> keras.Model:
    layers: list[Any] = [keras.layers.Dense(width, "relu") for _ in range(num_layers)]
    layers.insert(2, keras.layers.BatchNormalization())
    layers.insert(4, keras.layers.Dropout(0.1))
    model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(3)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("shard", "size"), WAYS, ids=str)
def test_a_plan_is_what_is_reported(shard: Sharded, size: int | None, name: str) -> None:
    plan = keras_ext.memory_plan(
        lambda: dense(OPTIMIZERS[name]()), batch_size=8, num_devices=4, shard=shard, shard_size=size
    )
    devices = [f"CPU:{i}" for i in range(4)]
    with strategies.MirroredStrategy(devices, shard=shard, shard_size=size).scope():
        model = dense(OPTIMIZERS[name]())
        model.optimizer.build(model.trainable_variables)
    report = keras_ext.memory_report(model)
    assert list(report.together) == devices
    for device in devices:
        assert plan.weights == pytest.approx(report.weights[device], rel=0.01)
        assert plan.gradients == pytest.approx(report.gradients[device], rel=0.01)
        assert plan.optimizer == pytest.approx(report.slots[device], rel=0.01)
        assert plan.gathered == report.gathered.get(device, 0)
        assert plan.together - (plan.activations or 0) == pytest.approx(report.together[device], rel=0.01)
    assert report.formula is not None
    without_gathered = plan.weights + plan.gradients + plan.optimizer
    assert report.formula[1] == pytest.approx(without_gathered, rel=0.01)


def test_accumulated_gradients_and_loss_scales_are_planned() -> None:
    def make() -> keras.Model:
        inner = keras.optimizers.Adam(gradient_accumulation_steps=2)
        return dense(keras.optimizers.LossScaleOptimizer(inner), 2, 32)

    plan = keras_ext.memory_plan(make, batch_size=8, num_devices=1)
    model = make()
    model.optimizer.build(model.trainable_variables)
    report = keras_ext.memory_report(model)
    assert [plan.weights, plan.gradients, plan.optimizer] == [
        sum(kind.values()) for kind in (report.weights, report.gradients, report.slots)
    ]


def test_seven_billion_parameters_take_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = keras_ext.memory_plan(
        lambda: dense(keras.optimizers.Adam(), 27, 16384), batch_size=64, num_devices=8, shard="weights"
    )
    # In KiB: a single kernel has 1 GiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    assert plan.num_parameters > 7e9
    # Two gathered kernels; the biases, a scale and an offset are never sharded.
    assert plan.gathered == 2 * 2**30 + (27 + 2) * 65536 + 12


def test_nothing_of_the_caller_changes() -> None:
    def drawn() -> tuple[Any, str]:
        layer = keras.layers.Dense(3)
        layer.build((None, 2))
        return np.asarray(layer.kernel), layer.name

    keras.utils.set_random_seed(3)
    expected, name = drawn()
    keras.utils.set_random_seed(3)
    for _ in range(2):
        keras_ext.memory_plan(lambda: dense(keras.optimizers.Adam(), 1, 8), batch_size=8, num_devices=2)
    found, _ = drawn()
    np.testing.assert_array_equal(found, expected)
    # Nor does planning leave anything for the next scope to initialize.
    with keras.StatelessScope():
        pass
    assert drawn()[1] != name


def activations(make: Callable[[], keras.Model], num_rows: int = 10) -> int | None:
    return keras_ext.memory_plan(make, batch_size=num_rows, num_devices=1).activations


def compiled(model: keras.Model) -> keras.Model:
    model.compile("sgd", "mse")
    return model


class TestActivations:
    def test_what_layers_return(self) -> None:
        # Numbers per row: 6, 6 of the dropout, 12 of the addition without a layer, 1; a reshape keeps nothing.
        def make() -> keras.Model:
            given = keras.Input((2, 3))
            flat = keras.layers.Flatten()(given)
            hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(6)(flat))
            return compiled(keras.Model(given, keras.layers.Dense(1)(hidden + hidden)))

        assert activations(make) == 4 * 10 * (6 + 6 + 6 + 1)

    def test_of_models_in_models_whose_own_inputs_have_no_size(self) -> None:
        def make() -> keras.Model:
            ids = keras.Input((None,), dtype="int32")
            inner = keras.Model(ids, keras.layers.Dense(5)(keras.layers.Embedding(7, 4)(ids)))
            outer = keras.Input((3,), dtype="int32")
            return compiled(keras.Model(outer, inner(outer)))

        assert activations(make) == 4 * 10 * 3 * (4 + 5)

    def test_rows_of_a_replica_and_two_bytes(self) -> None:
        def make() -> keras.Model:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, dtype="mixed_bfloat16")])
            return compiled(model)

        plan = keras_ext.memory_plan(make, batch_size=10, num_devices=4)
        assert (plan.activations, plan.rows["one device"][1]) == (2 * 3 * 8, 2 * 10 * 8)

    @pytest.mark.parametrize(("offload", "expected"), [(False, 4 * 8), (True, 0)])
    def test_of_blocks_that_are_computed_again(self, offload: bool, expected: int) -> None:
        def make() -> keras.Model:
            blocks = [keras.Sequential([keras.layers.Dense(size), keras.layers.Dense(8)]) for size in (16, 64, 32, 16)]
            model = keras.Sequential([keras.Input((8,)), *blocks, keras.layers.Dense(1)])
            return compiled(keras_ext.rematerialize(model, offload=offload))

        # The output of the last block is no block's input: it stays on the device.
        outputs = expected or 8
        # The outputs of the largest block's layers; the last layer of the model returns one number.
        assert activations(make) == 4 * 10 * (outputs + 64 + 8 + 1)

    def test_of_a_model_without_a_graph_nothing_is_known(self) -> None:
        class Own(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(3)

            def build(self, shape: Any) -> None:
                self.dense.build(shape)
                self.built = True

            def call(self, x: Any) -> Any:
                return self.dense(x)

        def make() -> keras.Model:
            model = Own()
            model.build((None, 4))
            return compiled(model)

        plan = keras_ext.memory_plan(make, batch_size=8, num_devices=1)
        assert (plan.activations, plan.weights, plan.together) == (None, 60, 60 + 60 + 12)
        assert str(plan).splitlines()[1].split()[-2:] == ["-", "132"]


def test_frozen_weights_are_cut_but_have_no_gradients() -> None:
    def make() -> keras.Model:
        model = dense(keras.optimizers.Adam(), 2, 64)
        model.layers[0].trainable = False
        return compiled(model)

    plan = keras_ext.memory_plan(make, batch_size=8, num_devices=4, shard="weights")
    with strategies.MirroredStrategy([f"CPU:{i}" for i in range(4)], shard="weights").scope():
        model = make()
    report = keras_ext.memory_report(model)
    assert plan.weights == pytest.approx(report.weights["CPU:0"], rel=0.01)
    assert plan.gradients == pytest.approx(report.gradients["CPU:0"], rel=0.02)
    assert report.formula is None


@pytest.mark.parametrize("shard", [None, "weights"])
@pytest.mark.parametrize("mesh", [{"expert": 2}, {"data": 2, "expert": 2}, {"expert": 2, "tensor": 2}], ids=str)
def test_experts_are_divided_and_so_are_the_slots_of_all_weights(mesh: dict[str, int], shard: Sharded) -> None:
    def make() -> keras.Model:
        mixture = keras_ext.MixtureOfExperts(4, 64, load_balancing_loss=0.0, use_bias=True)
        model = keras.Sequential(
            [keras.Input((8, 128)), mixture, keras.layers.Dense(512, "relu"), keras.layers.Dense(8)]
        )
        model.compile("adam", "mse")
        return model

    plan = keras_ext.memory_plan(make, batch_size=8, mesh=mesh, shard=shard)
    devices = [f"CPU:{i}" for i in range(int(np.prod(list(mesh.values()))))]
    with strategies.MirroredStrategy(devices, mesh=mesh, shard=shard).scope():
        model = keras_ext.parallelize(make()) if "tensor" in mesh else make()
        model.optimizer.build(model.trainable_variables)
    report = keras_ext.memory_report(model)
    assert plan.weights == pytest.approx(max(report.weights.values()), rel=0.01)
    assert plan.gradients == pytest.approx(max(report.gradients.values()), rel=0.01)
    assert plan.optimizer == pytest.approx(max(report.slots.values()), rel=0.01)
    assert plan.activations
    assert len(plan.rows) == 3


def test_a_model_with_a_mixture_is_split_as_others_are() -> None:
    """A mixture splits itself wherever the axis is: that does not mean that the rest is split already."""

    def make() -> keras.Model:
        dense_layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(32)]
        mixture = keras_ext.MixtureOfExperts(4, 16, load_balancing_loss=0.0)
        model = keras.Sequential([keras.Input((8, 32)), mixture, *dense_layers])
        model.compile("adam", "mse")
        return model

    plan = keras_ext.memory_plan(make, batch_size=8, mesh={"tensor": 2})
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        model = keras_ext.parallelize(make())
        model.optimizer.build(model.trainable_variables)
    report = keras_ext.memory_report(model)
    assert plan.weights == max(report.weights.values())
    assert plan.optimizer == max(report.slots.values())


def test_the_table_has_the_other_ways_to_share() -> None:
    plan = keras_ext.memory_plan(
        lambda: dense(keras.optimizers.Adam()), batch_size=8, num_devices=4, shard="gradients", shard_size=2
    )
    lines = str(plan).splitlines()
    assert lines[0].split() == ["MB", "per", "device", *KINDS]
    names = [line.partition("  ")[0] for line in lines[1:]]
    assert names[:4] == ["one device", "4 replicas", 'shard="gradients", by 2 *', 'shard="weights", by 2']
    assert lines[-1] == f"{plan.num_parameters:,} parameters, 8 rows in a batch. *: as asked."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, r"batch_size is .*Received: batch_size=0\."),
        ({"num_devices": 1.5}, r"num_devices is .*Received: num_devices=1\.5\."),
        ({"shard": "all"}, r"or None\. Received: shard='all'\."),
        ({"shard": "weights", "shard_size": 3}, r"divisor of their number.*Received: shard_size=3, shard='weights'"),
        ({"shard_size": 2}, r"nothing without shard\. Received: shard_size=2, shard=None, and 4 replicas\."),
        ({"make_model": lambda: keras.Sequential([keras.Input((2,))])}, r"that is compiled\. Received: <Seq"),
        ({"make_model": lambda: compiled(keras.Sequential([keras.layers.Dense(2)]))}, r"Received: .*is not built\."),
        (
            {"make_model": lambda: compiled(keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(2)]))},
            r"all of them but the rows.*Received: an input .* of shape \(None, None, 2\)\.",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {
        "make_model": lambda: dense(keras.optimizers.Adam(), 1, 8),
        "batch_size": 8,
        "num_devices": 4,
    }
    with pytest.raises(ValueError, match=message):
        keras_ext.memory_plan(**(usual | arguments))


def test_a_model_that_is_there_already_is_refused() -> None:
    model = dense(keras.optimizers.Adam(), 1, 8)
    with pytest.raises(ValueError, match=r"each time that it is called.*Received: \d+ weights .*/kernel'\.$"):
        keras_ext.memory_plan(lambda: model, batch_size=8, num_devices=4)


def test_a_scope_is_refused() -> None:
    with (
        strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope(),
        pytest.raises(ValueError, match=r"Leave the scope out\. Received: .* under MirroredStrategy\."),
    ):
        keras_ext.memory_plan(lambda: dense(keras.optimizers.Adam(), 1, 8), batch_size=8, num_devices=4)


def test_resident_memory(tmp_path: Any) -> None:
    status = tmp_path / "status"
    assert resident_bytes(status) is None
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    assert resident_bytes(status) == (2**20, 2**21)
    status.write_text("Name:\tpython\n")
    assert resident_bytes(status) is None
