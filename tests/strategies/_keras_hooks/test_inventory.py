"""A new Keras or TensorFlow that changes a function that a hook relies on fails here, with the function's name."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies import _keras_hooks, _tf_internals
from strategies._keras_hooks import addresses, distributed_optimizers, wrapping
from strategies._keras_hooks.addresses import BaseOptimizer, TFEpochIterator, saving_lib, tf_random
from strategies._keras_hooks.signatures import signature
from tests.processes import ROOT
from tests.releases import has_keras, is_there
from tests.strategies._keras_hooks.signatures import changes, overridden, overriding_methods

INVENTORY = tomllib.loads(Path(__file__).with_name("inventory.toml").read_text())
#: Names that the installed Keras lacks, if it is older than the Keras of the inventory.
ABSENT = {name for name, release in INVENTORY["since_keras"].items() if not has_keras(release)}
WRAPPED, OVERRIDDEN = addresses.functions("wrapped"), addresses.functions("overridden")


@pytest.fixture(scope="module")
def seen() -> Any:
    """Returns the record of a process in which nothing else was hooked, replaced or trained: see `exercise.py`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tests.strategies._keras_hooks.exercise"]
    output = subprocess.check_output(program, env=environment, cwd=ROOT, text=True)
    return json.loads(output.splitlines()[-1])


def test_functions_that_are_wrapped(seen: Any) -> None:
    lines = changes(WRAPPED, seen["signatures"], seen["hooks"])
    assert not lines, "\n".join(lines)


def test_each_hook_is_called_by_a_training_that_needs_it(seen: Any) -> None:
    unused = [f"{name}: {hook} is never called" for name, hook in seen["hooks"].items() if name not in seen["called"]]
    assert not unused, "\n".join(unused)


def test_methods_that_are_overridden() -> None:
    found = {name: signature(theirs) for name, (theirs, _) in overridden().items()}
    lines = changes(OVERRIDDEN, found, {name: ours for name, (_, ours) in overridden().items()})
    assert not lines, "\n".join(lines)


def test_each_overriding_method_is_called_by_a_training_that_needs_it(seen: Any) -> None:
    names = {f"{cls.__module__}.{cls.__qualname__}.{name}" for cls, name, _ in overriding_methods()}
    if not is_there("OrbaxCheckpoint"):
        names.remove("strategies._keras_hooks.distributed_callbacks._SavesTree._save_checkpoint")
    assert not [name for name in names if name.startswith("strategies.") and name not in seen["called"]]


@pytest.mark.parametrize("name", INVENTORY["several_processes"])
def test_hooks_for_several_processes_have_a_test_with_several(name: str) -> None:
    functions = {**addresses.functions("wrapped", "3.15"), **addresses.functions("overridden", "3.15")}
    assert name in functions
    path, _, test = INVENTORY["several_processes"][name].partition("::")
    assert f"def {test}(" in (ROOT / path).read_text()


def test_without_our_strategies_hooks_pass_through(seen: Any) -> None:
    """A hook passes its arguments once to the original function, and returns the function's result."""
    assert len(seen["called_by_plain"]) > 30
    assert not seen["altered"]


def test_without_our_strategies_all_is_as_if_nothing_were_hooked(seen: Any) -> None:
    """Compares weights, slots, logs, the names of layers, ours included, and the number of operations of a step."""
    assert seen["after"] == seen["before"]


def test_names_of_split_layers_are_those_of_plain_ones(seen: Any) -> None:
    own, *split = seen["before"]["names"][-5:]
    assert own == "column_parallel_dense"
    assert split == ["dense_1", "dense_2", "multi_head_attention", "dense_3"]


def test_a_changed_signature_is_named_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    _keras_hooks.install()
    name = "keras.src.optimizers.base_optimizer.BaseOptimizer.apply"
    # monkeypatch restores our record, as it restores Keras' function.
    monkeypatch.setitem(wrapping._hooks, name, wrapping.hooks()[name])

    monkeypatch.setattr(BaseOptimizer, "apply", lambda self, grads: grads)
    distributed_optimizers.install()
    hook = wrapping.hooks()[name]
    found = {name: signature(hook.original)}
    assert changes({name: WRAPPED[name]}, found, {name: hook.name}) == [
        f"{name} was (self, grads, trainable_variables=None), is (self, grads): "
        "see strategies._keras_hooks.distributed_optimizers._apply_of_no_strategy"
    ]


def test_a_changed_method_is_named_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "keras.src.optimizers.base_optimizer.BaseOptimizer._clip_gradients"
    monkeypatch.setattr(BaseOptimizer, "_clip_gradients", lambda self, grads, variables: grads)
    theirs, ours = overridden()[name]
    assert changes({name: OVERRIDDEN[name]}, {name: signature(theirs)}, {name: ours}) == [
        f"{name} was (self, grads), is (self, grads, variables): "
        "see strategies._keras_hooks.distributed_optimizers.DistributedOptimizer._clip_gradients"
    ]
    monkeypatch.delattr(BaseOptimizer, "_clip_gradients")
    assert name not in overridden()


def test_a_name_that_is_gone_is_named_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(BaseOptimizer, "apply")
    message = r"BaseOptimizer\.apply does not exist.*distributed_optimizers\._apply_of_no_strategy hooks into"
    with pytest.raises(RuntimeError, match=message):
        distributed_optimizers.install()


def test_two_hooks_of_one_function_are_refused() -> None:
    """The second hook would never be called."""
    _keras_hooks.install()
    _keras_hooks.install()
    with pytest.raises(RuntimeError, match=r"BaseOptimizer\.apply is wrapped already, by <function _apply_of_no"):
        wrapping.wrap(BaseOptimizer, "apply", lambda original, *args: original(*args))


def test_what_is_replaced_in_tensorflow() -> None:
    register = _tf_internals.RegisterGradient.__call__
    found = {"RegisterGradient.__call__": signature(getattr(register, "_keras_strategies_original", register))}
    lines = changes(INVENTORY["replaced"], found, dict.fromkeys(found, "strategies.replica.graph_lifetimes"))
    assert not lines, "\n".join(lines)


def test_names_that_are_imported_from_tensorflow() -> None:
    found = {name: signature(getattr(_tf_internals, name)) for name in _tf_internals.__all__}
    lines = changes(INVENTORY["imported"], found, dict.fromkeys(found, _tf_internals.__name__))
    assert not lines, "\n".join(lines)


def test_changes_are_distinguished() -> None:
    assert changes({"a": "(x)", "b": "()", "c": "()"}, {"a": "(x, y)", "c": "()", "d": "()"}, {"a": "ours"}) == [
        "b is gone",
        "d() is not listed",
        "a was (x), is (x, y): see ours",
    ]


def _objects() -> dict[str, Any]:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2, use_ema=True)
    model.compile(optimizer, "mse", metrics=["mae"])
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    attention = keras.layers.MultiHeadAttention(2, 2)
    attention.build((None, 3, 4), (None, 3, 4))
    numbers = tf.data.Dataset.range(4)
    graph = tf.Graph()
    with graph.as_default():
        tf.numpy_function(np.ones, [2], tf.float64)
    return {
        "optimizer": optimizer,
        "adagrad": _built(keras.optimizers.Adagrad()),
        "adam": _built(keras.optimizers.Adam()),
        "loss scale optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
        "model": model,
        "compiled loss": model._compile_loss,
        "loss of a function": keras.losses.CosineSimilarity(),
        "compiled metrics": model._compile_metrics,
        "metric of a function": keras.metrics.MeanMetricWrapper(keras.losses.mean_squared_error),
        "layer": model.layers[1],
        "variable": model.layers[1].kernel,
        "seed generator": keras.random.SeedGenerator(1),
        "uninitialized variable": _tf_internals.UninitializedVariable(shape=[2], dtype="float32"),
        "dataset that is a shard": numbers.shard(2, 0),
        "iterator": iter(numbers),
        "repeated dataset": numbers.repeat(2),
        "layer without a build of its own": keras.layers.ReLU(),
        "normalization": _normalization(),
        "lambda layer": keras.layers.Lambda(abs),
        "attention layer": attention,
        "grouped attention layer": keras.layers.GroupQueryAttention(2, 2, 2),
        "einsum layer": keras.layers.EinsumDense,
        "symbolic tensor": inputs,
        # Reading its properties would open files.
        "tensorboard": keras.callbacks.TensorBoard,
        "model checkpoint": keras.callbacks.ModelCheckpoint("{epoch}.keras"),
        "epoch iterator": TFEpochIterator(x=np.ones((2, 2)), distribute_strategy=model.distribute_strategy),
        "gradient registry": _tf_internals.gradient_registry,
        "gradient registration": _tf_internals.RegisterGradient("OfNothing"),
        "dataset of arrays": tf.data.Dataset.from_tensor_slices([1, 2]),
        "mapped dataset": numbers.map(abs),
        "dataset mapped in parallel": numbers.map(abs, num_parallel_calls=2),
        "batched dataset": numbers.batch(2),
        "prefetched dataset": numbers.prefetch(1),
        "spec of replicas": _tf_internals.PerReplicaSpec(tf.TensorSpec(())),
        "replica context": tf.distribute.get_replica_context(),
        "eager context": _tf_internals.eager_context.context(),
        "random seeds": _tf_internals.random_seed,
        "graph": graph,
        "operation": graph.get_operations()[0],
        "tensor of a graph": graph.get_operations()[0].outputs[0],
        "random numbers": tf_random,
        "saving": saving_lib,
        "store of weights": saving_lib.H5IOStore(io.BytesIO(), mode="w"),
        "component of a variable": tf.Variable(1.0),
        "mirrored variable": _tf_internals.MirroredVariable,
        "extended strategy": tf.distribute.MirroredStrategy(["CPU:0"]).extended,
    }


def _built(optimizer: keras.Optimizer) -> keras.Optimizer:
    optimizer.build([])
    return optimizer


def _normalization() -> keras.layers.Layer:
    layer = keras.layers.Normalization()
    layer.build((None, 2))
    return layer


def _has(owner: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    return hasattr(owner, name) and (not rest or _has(getattr(owner, name), rest))


def test_attributes_that_are_read_or_set() -> None:
    objects = _objects()
    known = INVENTORY["attributes"]
    missing = {f"{kind}.{name}" for kind, names in known.items() for name in names if not _has(objects[kind], name)}
    assert missing == {f"{kind}.{name}" for kind, names in known.items() for name in names} & ABSENT


def test_what_older_releases_lack_is_in_the_inventory() -> None:
    attributes = {f"{kind}.{name}" for kind, names in INVENTORY["attributes"].items() for name in names}
    assert INVENTORY["since_keras"].keys() <= attributes


def test_no_attribute_is_left_out() -> None:
    """Finds names with an underscore that are read from other objects and are not defined by this package."""
    ours: set[str] = set()
    read: dict[str, str] = {}
    for path in [*(ROOT / "strategies").rglob("*.py"), *(ROOT / "keras_ext").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                is_own = (
                    isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
                )
                ours.update([node.attr] if is_own else [])
                read.setdefault(node.attr, f"{path.relative_to(ROOT)}:{node.lineno}")
    listed = [*INVENTORY["attributes"].values(), *INVENTORY["other_attributes"].values()]
    known = {part for names in listed for name in names for part in name.split(".")}
    left_out = {name: place for name, place in read.items() if name not in ours | known}
    assert not left_out


@pytest.mark.parametrize(("module", "method", "count"), [(keras.optimizers, "build", 2), (keras.metrics, "result", 1)])
def test_what_is_wrapped_in_the_classes_that_a_program_uses(module: Any, method: str, count: int) -> None:
    """Optimizers' `build`, which needs whole weights, and metrics' `result`, in each class that defines its own."""
    own = {
        each: vars(each)[method] for each in vars(module).values() if isinstance(each, type) and method in vars(each)
    }
    assert len(own) > 10
    changed = [each.__name__ for each, function in own.items() if len(inspect.signature(function).parameters) != count]
    assert not changed


@pytest.mark.parametrize("module", INVENTORY["called"])
def test_functions_of_modules(module: str) -> None:
    for name in INVENTORY["called"][module]:
        assert callable(getattr(getattr(_tf_internals, module), name)), name
