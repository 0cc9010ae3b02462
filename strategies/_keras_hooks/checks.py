"""Finds, before training, layers whose results under a strategy differ from those on one device.

The model is traced once, in a graph that is discarded. Each loss that a layer adds is checked against the rule by which
a training step combines the losses of replicas; each output is checked for rows that depend on other rows: see
``strategies.batches.row_kinds``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, overload

import keras
import tensorflow as tf

from strategies._keras_hooks.compared_batches import batches_of
from strategies._keras_hooks.compared_references import check_comparable, other_mesh
from strategies._keras_hooks.compared_training import takes_inputs
from strategies._keras_hooks.comparisons import compare
from strategies._keras_hooks.global_state import global_state_kept
from strategies._keras_hooks.microbatch_layers import layers_of_microbatches
from strategies._keras_hooks.shapes import shapes_of
from strategies.batches import shares
from strategies.batches.program_lines import line_of
from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_warnings import MIXING_FIX, is_fault, mixes_rows
from strategies.comparison import Comparison
from strategies.engine.strategy import Finding, MeshStrategy
from strategies.replica.parts import current_parts

_MIXES = "What it computes for a row depends on other rows: {where}, which are not all of the batch{line}."
_MIXES_ON_REPLICAS = "each of {number} replicas has its own rows"
_MIXES_IN_MICROBATCHES = "each of {number} micro-batches has its own rows"
_DIFFERENCE = (
    "A loss that it adds is neither a mean nor a sum over rows: {where}, and training takes their mean, which is not "
    "the loss of the global batch."
)
_OVER_REPLICAS = "each of {number} replicas computes it from its own rows"
_OVER_MICROBATCHES = "it is computed of each of {number} micro-batches"
_AS_ROWS = "add it as a mean or a sum over rows, or compute it from the model's outputs in the loss"
_REPLACE = (
    "keras_ext.replace_experts(model) makes the loss of a mixture of experts that it knows that of the global batch; "
    f"of another layer, {_AS_ROWS}."
)
_ONE_MICROBATCH = f"Use num_microbatches=1, and check again; or {_AS_ROWS}."


class KerasStrategy(MeshStrategy):
    """The base class of the strategies: a mesh, and a check of Keras models on it."""

    @overload
    def check(self, model: Any, *, inputs: Any = None) -> tuple[Finding, ...]: ...

    @overload
    def check(
        self,
        model: Any,
        data: Any,
        *,
        steps: int = 3,
        inputs: Any = None,
        reference: Callable[[], Any] | None = None,
        against: Mapping[str, int] | tf.distribute.Strategy | None = None,
    ) -> Comparison: ...

    def check(
        self,
        model: Any,
        data: Any = None,
        *,
        steps: int = 3,
        inputs: Any = None,
        reference: Callable[[], Any] | None = None,
        against: Mapping[str, int] | tf.distribute.Strategy | None = None,
    ) -> tuple[Finding, ...] | Comparison:
        """Compares training on the mesh with training on one device; without data, it inspects the model only.

        **With data**, the model is trained for `steps` steps here, and a plain copy of it on one device of rank 0, from
        the same weights and on the same batches. Compared are the outputs of all layers and all gradients of the first
        batch, and after each step the loss, metrics, weights, the optimizer's slots and other variables. The result
        says whether all are equal up to rounding, and names the layer or metric from which a difference comes. The
        model, its optimizer and its seeds are as before afterwards. All ranks call it, and get the same result.

        A value differs if it is further from that of one device than 1e-6 (more in half precision), and
        more than ten times as far as one rounding in the first weights moves it on one device. Dropout and the like,
        of which each replica draws its own numbers, and BatchNormalization over the rows of a replica, compute as in
        inference meanwhile: the result's `notes` name them. The layers of a pipeline over several processes are
        compared by their gradients only. Rank 0 needs the memory of the whole model, its optimizer and two copies.

        **Without data**, the layers whose results differ from those on one device are returned, with fixes; an empty
        tuple if there are none. These are the `findings` of a result with data, too. This covers the calls of all
        layers, in training. It finds

        * layers whose output mixes rows (``x - mean(x, 0)``, statistics of the batch, flips, sorting or shuffling along
          rows): over several replicas, or several micro-batches of a pipeline, they see only some of the rows;
        * losses that a layer adds (``add_loss``) and that are neither a mean nor a sum over rows, such as the
          load-balancing losses of most mixtures of experts: training takes the mean over replicas or micro-batches.
          Losses that are combined correctly, such as those of activity regularizers, are not findings;
        * in a pipeline of several micro-batches, ``BatchNormalization(synchronized=True)`` and
          ``SpectralNormalization``, which normalize once per micro-batch, and ``keras_ext.MixtureOfExperts`` with
          ``capacity_factor`` or ``router_bias``, which are applied to each micro-batch.

        The check does not cover ``train_step``, loss functions and metrics, about which training warns, nor values that
        layers keep in variables. ``BatchNormalization`` without ``synchronized=True`` is not a finding: it is known to
        normalize over the rows of its replica. Functions that TensorFlow cannot trace, as in ``tf.py_function``, are
        not checked.

        Without data the model is traced, not computed: weights, seeds, metrics and losses do not change. Nothing is
        printed, and processes do not wait for each other.

        Args:
            model: a built Keras model; if there are data, it has to be compiled, and is built if it is not.
            data: global batches: a ``tf.data.Dataset``, a ``PyDataset``, a list or a generator of them; or a tuple of
                arrays (x, y) or (x, y, sample_weight), which are cut into batches of 32 rows.
            steps: the number of training steps.
            inputs: a batch as the model takes it, or a ``tf.TensorSpec`` for each tensor; by default the inputs of the
                first batch. Sequential and Functional models need none, unless they cannot be traced with their unknown
                sizes.
            reference: a function that makes and compiles the same model without a strategy; its weights do not matter.
                By default the plain model is what ``keras.models.load_model`` makes of the model's file.
            against: for a model that does not fit one device, another mesh over the same devices, such as
                ``{"tensor": 4}``, or a strategy of it, with which this mesh is compared in place of one device. Then
                `reference` makes, splits and compiles the model, and is called in that strategy's scope.

        Raises:
            ValueError: the model is not built, or needs `inputs`; it is not compiled, or has no plain copy; there are
                fewer batches than steps. On all ranks.

        Example:

            comparison = strategy.check(model, dataset, steps=3)
            print(comparison)
            assert comparison.ok
            for finding in strategy.check(model):
                print(finding)
        """
        if data is not None:
            batches = batches_of(data, steps)
            check_comparable(self, model)
            with self.scope():
                can_call = takes_inputs(model, batches[0])
            x = batches[0].x if inputs is None else inputs
            findings = self._findings(model, x) if can_call else ()
            other = None if against is None else other_mesh(self, against)
            return dataclasses.replace(compare(model, batches, reference, other), findings=findings)
        return self._findings(model, inputs)

    def _findings(self, model: Any, inputs: Any) -> tuple[Finding, ...]:
        num_replicas, num_microbatches = self.num_replicas_in_sync, int(getattr(model, "num_microbatches", 1))
        if num_replicas == num_microbatches == 1:
            return ()
        if num_microbatches > 1:
            difference = _DIFFERENCE.format(where=_OVER_MICROBATCHES.format(number=num_microbatches))
            mixes = _MIXES_IN_MICROBATCHES.format(number=num_microbatches)
        else:
            difference = _DIFFERENCE.format(where=_OVER_REPLICAS.format(number=num_replicas))
            mixes = _MIXES_ON_REPLICAS.format(number=num_replicas)
        fix = _REPLACE if num_microbatches == 1 else _ONE_MICROBATCH
        symbolic = _symbolic_inputs(model, inputs)
        with self.scope():
            try:
                mixing, layers = _layers_with_faults(model, symbolic, of_microbatches=num_microbatches > 1)
            except Exception as error:
                if inputs is not None or not _has_open_sizes(symbolic):
                    raise
                raise ValueError(
                    "The model cannot be traced with the sizes that its inputs leave open, such as the length of a "
                    "sequence: give a batch of inputs, as in strategy.check(model, inputs=x[:2]). Received: "
                    f"{model.name!r} with inputs {keras.tree.map_structure(lambda each: each.shape, symbolic)}, and "
                    f"{type(error).__name__}: {error}"
                ) from error
        found = [
            Finding(
                _name_of(layer),
                _MIXES.format(where=mixes, line=f" ({':'.join(map(str, line))})" if line else ""),
                MIXING_FIX,
            )
            for layer, line in mixing
        ]
        return (
            *layers_of_microbatches(model),
            *found,
            *(Finding(_name_of(layer), difference, fix) for layer in layers),
        )


def _name_of(layer: Any) -> str:
    return str(getattr(layer, "path", None) or layer.name)


def _layers_with_faults(
    model: Any, inputs: Any, *, of_microbatches: bool
) -> tuple[list[tuple[Any, tuple[str, int] | None]], list[Any]]:
    """Returns the layers that mix rows, with the lines that do, and those that add a loss that is neither mean nor sum.

    Each layer is listed once.
    """
    layers = model._flatten_layers()
    # The call below replaces the losses of the previous call: they are restored at the end.
    before = [(layer, list(layer._losses), set(layer._loss_ids)) for layer in layers]
    dependence = RowDependence(_static_rows(inputs), of_microbatches=of_microbatches)
    found: list[Any] = []
    mixing: list[tuple[Any, tuple[str, int] | None]] = []

    def call(inputs: Any) -> tuple[()]:
        # In a StatelessScope nothing is assigned to variables.
        with (
            keras.StatelessScope(collect_losses=True),
            shares.judged_by(dependence),
            _watched(layers, dependence, mixing),
        ):
            model(inputs, **({"training": True} if model._call_has_training_arg else {}))
            for layer in layers:
                if any(is_fault(dependence.kind(loss)) for loss in layer._get_own_losses()):
                    found.append(layer)
        return ()

    try:
        # Runs as a replica: outside of replicas, reading the totals of metrics is a collective, which waits for other
        # processes.
        with global_state_kept(), current_parts().as_first_replica():
            shapes_of(call, inputs)
    finally:
        for layer, losses, ids in before:
            layer._losses[:] = losses
            layer._loss_ids.clear()
            layer._loss_ids.update(ids)
    return mixing, found


@contextlib.contextmanager
def _watched(
    layers: Sequence[Any], dependence: RowDependence, mixing: list[tuple[Any, tuple[str, int] | None]]
) -> Iterator[None]:
    """Context manager: adds layers that mix rows to `mixing`, but not the layers that follow or contain them."""

    def watch(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            for leaf in keras.tree.flatten(outputs):
                if mixes_rows(dependence.kind(leaf)):
                    if all(layer is not known for known, _ in mixing):
                        mixing.append((layer, line_of(dependence.origin(leaf, mixes_rows))))
                    dependence.take_as_rows(leaf)
            return outputs

        return watched

    watched = [layer for layer in layers if "call" not in vars(layer)]
    for layer in watched:
        object.__setattr__(layer, "call", watch(layer, layer.call))
    try:
        yield
    finally:
        for layer in watched:
            object.__delattr__(layer, "call")


def _symbolic_inputs(model: Any, inputs: Any) -> Any:
    """Returns symbolic tensors in the structure of a model's inputs; rows are unknown unless the model fixes them."""
    if not model.built:
        raise ValueError(
            "Only a model that is built can be checked: it has no layers before. Call it on a batch, or its `build`, "
            f"first. Received: {model.name!r}, not built."
        )
    if inputs is not None:
        return keras.tree.map_structure(_symbolic, inputs)
    if not getattr(model, "inputs", None):
        raise ValueError(
            "A model without a graph does not define its inputs: give a batch of inputs, as in "
            f"strategy.check(model, inputs=x[:2]). Received: {model.name!r} of class {type(model).__qualname__}, "
            "inputs=None."
        )
    # A Sequential model has one input.
    return model._inputs_struct if hasattr(model, "_inputs_struct") else model.inputs[0]


def _symbolic(value: Any) -> Any:
    if isinstance(value, tf.TensorSpec):
        return keras.KerasTensor(value.shape, value.dtype.name)
    if isinstance(value, tf.SparseTensor):
        return keras.KerasTensor((None, *value.shape[1:]), value.dtype.name, sparse=True)
    tensor = tf.convert_to_tensor(value)
    return keras.KerasTensor((None, *tensor.shape[1:]), tensor.dtype.name)


def _static_rows(inputs: Any) -> Collection[int]:
    """Returns the numbers of rows that inputs fix, which appear as plain ints in the model's computations."""
    firsts = [each.shape[0] for each in keras.tree.flatten(inputs) if len(each.shape)]
    return sorted({int(size) for size in firsts if size is not None})


def _has_open_sizes(inputs: Any) -> bool:
    return any(None in each.shape[1:] for each in keras.tree.flatten(inputs))
