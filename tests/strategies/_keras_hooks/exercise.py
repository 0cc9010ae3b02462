"""Trains with every hook, in a process of its own, and prints as JSON which hooks were called and what they changed.

Run by `test_inventory.py`. The process begins without a strategy and trains with plain Keras. It then hooks Keras with
a recording `wrap`, trains under strategies everything that needs hooks, and ends with the plain training again.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies import _keras_hooks, layer_api
from strategies._keras_hooks import wrapping
from strategies._keras_hooks.addresses import keras_quantizers
from strategies._keras_hooks.distributed_callbacks import distribute
from strategies._keras_hooks.signatures import signature
from tests.graphs import collect_seldom
from tests.releases import is_there
from tests.strategies._keras_hooks.signatures import overriding_methods

X, Y = np.linspace(0, 1, 24).reshape(8, 3).astype("float32"), np.ones((8, 1), "float32")
OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": False, "verbose": 0}


class Recorder:
    """A `wrap` that records which hooks are called, and which hooks do more than pass through."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.altered: set[str] = set()
        self._wrap = wrapping.wrap

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any], **kwargs: Any) -> None:
        """Wraps as `wrapping.wrap` does."""
        full_name = wrapping.full_name(owner, name)

        @functools.wraps(wrapper)
        def recording(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self.calls[full_name] += 1
            passed: list[tuple[Any, Any]] = []

            @functools.wraps(original)
            def spied(*own: Any, **own_kwargs: Any) -> Any:
                result = original(*own, **own_kwargs)
                passed.append((_bound(original, own, own_kwargs), result))
                return result

            given = _bound(original, args, kwargs)
            result = wrapper(spied, *args, **kwargs)
            if len(passed) != 1 or not _is_same(passed[0], (given, result)):
                self.altered.add(full_name)
            return result

        self._wrap(owner, name, recording, **kwargs)

    def install(self) -> None:
        """Replaces `wrap` in all modules of hooks, and counts the calls of methods that override Keras'."""
        for name, module in list(sys.modules.items()):
            if name.startswith(_keras_hooks.__name__) and hasattr(module, "wrap"):
                vars(module)["wrap"] = self.wrap
        for cls, name, method in list(overriding_methods()):
            setattr(cls, name, self._counted(f"{cls.__module__}.{cls.__qualname__}.{name}", method))

    def _counted(self, full_name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[full_name] += 1
            return method(*args, **kwargs)

        return counted


def _bound(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _is_same(one: Any, other: Any) -> bool:
    """Returns True for the same objects; lists and dictionaries of them may be copies."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other or (type(one) is type(other) is bool and one == other)


class Batches(keras.utils.PyDataset):
    """Batches of data, in a class of the user's own."""

    def __init__(self) -> None:
        super().__init__()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4]


class Noisy(keras.layers.Layer):
    """Adds a loss, and noise without a seed."""

    def call(self, x: Any, training: bool = False) -> Any:
        self.add_loss(keras.ops.mean(x))
        return x + 0.01 * keras.random.normal(keras.ops.shape(x)) if training else x


class OwnStep(keras.Model):
    """A model whose step asks TensorFlow for gradients, without a tape, and for derivatives of each row."""

    def __init__(self, count: tf.Variable) -> None:
        super().__init__()
        # The lambda keeps Keras from tracking it: it is no variable of the model.
        self.seen = [lambda: count]
        self.head = keras.layers.Dense(1)
        self.product = keras.layers.Dot(axes=1)
        self.steps = keras.metrics.Sum(name="steps")

    def call(self, x: Any) -> Any:
        return self.head(x + self.product([x, x]))

    def train_step(self, data: Any) -> Any:
        x, y = data
        ops, drawn = keras.ops, keras.random
        seen = drawn.dropout(x, 0.1, seed=1) + ops.cast(drawn.randint(ops.shape(x), 0, 2, seed=1), x.dtype)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(seen)
            made = self(seen)
        tape.batch_jacobian(made, seen, experimental_use_pfor=False)
        tape.jacobian(made, self.head.kernel.value, experimental_use_pfor=False)
        tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(made))
        for write in ("assign", "assign_add", "assign_sub"):
            getattr(self.seen[0](), write)(1.0)
        loss = self.compute_loss(x, y, made) + 0.0 * tf.cast(tf.size(made), "float32")
        if is_there("SparseCategoricalFocalCrossentropy"):
            loss += keras.losses.SparseCategoricalFocalCrossentropy()(tf.zeros(tf.shape(y)[:1]), tf.nn.softmax(x))
        self.steps.update_state(drawn.categorical(ops.zeros((1, 2)), 1, seed=1)[0, 0])
        gradients = tf.gradients(loss, [v.value for v in self.trainable_variables])
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.get_metrics_result()


def everything(folder: Path) -> None:
    """Trains, evaluates, saves and loads a model; this save has one process, saves in the parity tests have two."""
    with keras.RematScope("full"):
        first = keras.layers.Dense(4, activation="tanh")
    inner = [first, keras.layers.BatchNormalization(synchronized=True), keras.layers.Dropout(0.5), Noisy()]
    inner = [keras.layers.Normalization(), *inner]
    model = keras.Sequential([keras.Input((3,)), *inner, keras.layers.Dense(1)])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(clipnorm=1.0, use_ema=True))
    model.compile(optimizer, "mse", metrics=["mae", "hinge"])
    callbacks = [
        keras.callbacks.BackupAndRestore(folder / "backup"),
        keras.callbacks.ModelCheckpoint(folder / "made" / "checkpoint.keras"),
    ]
    model.fit(X, Y, **OPTIONS, callbacks=callbacks)
    model.evaluate(Batches(), verbose=0)
    model.predict(tf.data.Dataset.from_tensor_slices(X).batch(4), verbose=0)
    model.train_on_batch(X, Y)
    model.test_on_batch(X, Y)
    model.predict_on_batch(X)
    model.set_weights(model.get_weights())
    optimizer.set_weights([np.asarray(variable) for variable in optimizer.variables])
    model.save(folder / "model.keras")
    model.save(folder / "model.h5")
    pickle.dumps([model, optimizer])
    model.save_weights(folder / "model.weights.h5")
    model.load_weights(folder / "model.weights.h5")
    keras.saving.load_weights(model, folder / "model.weights.h5")
    keras.initializers.TruncatedNormal(seed=1)((2, 2))


def opened(folder: Path) -> None:
    """Exports and opens a model of plain layers: the layers of this file are not registered for loading."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.export(folder / "exported", verbose=False)
    keras.layers.TFSMLayer(folder / "exported")
    model.save(folder / "plain.keras")
    keras.models.load_model(folder / "plain.keras")
    model.save_weights(folder / "plain.weights.h5")
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    other.load_weights(folder / "plain.weights.h5", skip_mismatch=True)
    keras.saving.load_model(folder / "plain.keras")


def planned() -> None:
    """Quantizes a model that is made only for its shapes."""
    with layer_api.variables_undrawn():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        kernel = model.layers[0].kernel
        keras_quantizers.abs_max_quantize(kernel, 0, to_numpy=True)
        model.layers[0].quantize("int8")


def own_step(count: tf.Variable) -> None:
    """Trains with a custom step that writes a variable of one device, and with two optimizers."""
    model = OwnStep(count)
    opt = keras.optimizers
    optimizer = opt.Adagrad(0.1, weight_decay=0.1)
    if is_there("MultiOptimizer"):
        optimizer = opt.MultiOptimizer(opt.OptimizerMap(optimizer, {".*bias": opt.SGD(0.2)}))
    model.compile(optimizer, "mse")
    model.fit(X, Y, **OPTIONS)


def on_parameter_device() -> None:
    """Trains a table that the compute devices do not hold."""
    with strategies.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(5, 2), keras.layers.Flatten()])
        model.compile("adam", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 6)), **OPTIONS)
    model.set_state_tree(model.get_state_tree())
    if hasattr(keras.callbacks, "OrbaxCheckpoint"):
        save_by_orbax(model)


def failing() -> None:
    """Reads a row that a table does not have."""
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(5, 2), keras.layers.Flatten()])
        model.compile("sgd", "mse", jit_compile=False)
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        model.fit(np.full((4, 3), 7), np.ones((4, 6)), **OPTIONS)


def save_by_orbax(model: keras.Model) -> None:
    """Saves a state tree with a mock of Orbax, which needs JAX and is not installed."""
    from keras.src.callbacks import orbax_checkpoint

    callback = object.__new__(keras.callbacks.OrbaxCheckpoint)
    options = {"save_weights_only": True, "save_on_background": False, "checkpointer": mock.MagicMock()}
    vars(callback).update(options, _model=model)
    distribute(callback)
    with mock.patch.object(orbax_checkpoint, "ocp", mock.MagicMock()):
        callback._save_checkpoint(0)


def plain() -> dict[str, Any]:
    """Trains without a strategy. Returns weights, logs, names of layers, and the number of operations of a step."""
    # The import hooks the functions that serialize layers, so it must follow `Recorder.install`.
    import keras_ext

    keras.backend.clear_session()
    keras.utils.set_random_seed(1)

    class ColumnParallelDense(keras.layers.Dense):
        """A layer of the user's with the name of one of ours."""

    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), Noisy()]
    model = keras.Sequential([keras.Input((3,)), *layers, ColumnParallelDense(1)])
    optimizer = keras.optimizers.AdamW(clipnorm=0.1, gradient_accumulation_steps=2)
    # XLA would take longer than the rest of this program.
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    logs = model.fit(X, Y, **OPTIONS).history
    inputs = [tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1))]
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False).get_concrete_function(*inputs)
    split = keras_ext.ColumnParallelDense(2), keras_ext.RowParallelDense(2), keras_ext.ParallelMultiHeadAttention(1, 2)
    return {
        "weights": [np.asarray(variable).tolist() for variable in [*model.variables, *optimizer.variables]],
        "logs": logs,
        "names": [layer.name for layer in (*model.layers, *split, keras.layers.Dense(2))],
        "num_operations": len(step.graph.get_operations()),
    }


def main() -> None:
    """Runs everything and prints the record."""
    collect_seldom()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    recorder = Recorder()
    recorder.install()
    before = plain()
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    installed = wrapping.hooks()
    signatures = {name: signature(hook.original) for name, hook in installed.items()}
    hooks = {name: hook.name for name, hook in installed.items()}
    count = tf.Variable(0.0)
    with tempfile.TemporaryDirectory() as folder, strategy.scope():
        everything(Path(folder))
        opened(Path(folder))
        own_step(count)
    on_parameter_device()
    failing()
    planned()
    called = dict(recorder.calls)
    recorder.calls.clear()
    recorder.altered.clear()
    after = plain()
    seen = {"before": before, "after": after, "signatures": signatures, "hooks": hooks, "called": called}
    print(json.dumps(seen | {"called_by_plain": dict(recorder.calls), "altered": sorted(recorder.altered)}))


if __name__ == "__main__":
    main()
