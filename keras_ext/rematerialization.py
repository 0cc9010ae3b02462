"""Layers that are recomputed in the backward pass, so that no tensor inside them is held until then."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import keras

from keras_ext.tensor.split_tensor import SplitTensor, tensors_of, with_tensors
from keras_ext.tensor_metadata import LOGITS, MASK, metadata_of, not_none, set_metadata
from strategies import layer_api


def rematerialize(model: Any, which: Literal["blocks"] | Sequence[str] = "blocks", *, offload: bool = False) -> Any:
    """Makes layers of a model keep only their inputs for the backward pass, and recompute the rest there.

    In mixed precision, a transformer block keeps about 34 bytes for each number of its input; with this function it
    keeps 2, at the cost of a third more computation. Weights, metrics and logs are the same: the recomputation draws
    the same random numbers, and changes no state. Files are the same, too: a model that is loaded from a file, or made
    from a config, does not recompute. Recomputation works under every strategy and without one, but not with
    ``run_eagerly=True``, where everything is kept.

    A layer must track all weights that it uses: a weight that it reads from a closure would get no gradient.

    Call it after ``parallelize``, and before ``fit``. A ``PipelineModel`` has an argument `remat` instead.

    Args:
        model: the model to train, which is changed in place.
        which: names of layers at any depth, where each name selects all layers that have it; or "blocks": the layers of
            the model that hold other layers. If only one layer does, such as a backbone below a head, "blocks" means
            the blocks inside it.
        offload: True to hold the inputs in the host's memory. They are copied there while the next layer computes, and
            copied back in the backward pass, one layer ahead. It is meant for GPUs, where it was not measured.

    Returns:
        The model.

    Raises:
        ValueError: a name that no layer has, a model without blocks, or a layer that communicates with other replicas
            while it computes (``BatchNormalization(synchronized=True)``), or continues from the state of its last call
            (``stateful=True``). In training: a layer that draws random numbers without a seed of its own, or a gradient
            of a gradient.

    Example:

        with strategies.MirroredStrategy().scope():
            blocks = [keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(8)]) for _ in range(4)]
            model = keras_ext.rematerialize(keras.Sequential([keras.Input((8,)), *blocks]))
            model.compile("adam", "mse")

    Source: Chen et al., arXiv:1604.06174; the bytes of a block: Korthikanti et al., arXiv:2205.05198.
    """
    # Installs the hooks, also without a strategy: one of them refuses draws without a seed.
    layer_api.replica_parts()
    for layer in _blocks(model) if which == "blocks" else _named(model, which):
        for inner in layer._flatten_layers():
            if getattr(inner, "stateful", False) is True:
                raise ValueError(
                    "A layer with stateful=True continues from the state of its last call, and would do so in the "
                    f"second computation, too. Leave it out. Received: {inner.name!r} in {layer.name!r}."
                )
            if getattr(inner, "synchronized", False):
                raise ValueError(
                    "A layer that all-reduces over the replicas while it computes cannot be recomputed in a "
                    f"separate function. Leave it out, or set synchronized=False. Received: {inner.name!r} in "
                    f"{layer.name!r}."
                )
        # Keras calls a quantized layer by the second method.
        layer.call = layer.quantized_call = functools.partial(_recomputed, layer, offload)
    # A step that was traced earlier would still hold all activations.
    model.train_function = None
    return model


def is_rematerialized(layer: Any) -> bool:
    """Returns True if a layer keeps only its inputs for the backward pass."""
    return isinstance(getattr(layer, "call", None), functools.partial) and layer.call.func is _recomputed


def offloads(layer: Any) -> bool:
    """Returns True if a layer is recomputed, and holds its inputs in the host's memory."""
    return is_rematerialized(layer) and bool(layer.call.args[1])


def _blocks(model: Any) -> list[Any]:
    inside = [layer for layer in _children(model) if _children(layer)]
    if len(inside) == 1:
        deeper = [layer for layer in _children(inside[0]) if _children(layer)]
        inside = deeper if len(deeper) > 1 else inside
    if not inside:
        raise ValueError(
            "None of the model's layers holds other layers, so there are no blocks. Put the layers of a block into a "
            f"keras.Sequential, or name layers. Received: which='blocks', {model.name!r} with the layers "
            f"{[layer.name for layer in _children(model)][:8]}."
        )
    return inside


def _named(model: Any, names: Any) -> list[Any]:
    is_list = not isinstance(names, str) and isinstance(names, Sequence) and all(isinstance(n, str) for n in names)
    if not is_list:
        raise ValueError(f"which is 'blocks', or a list of names of layers. Received: which={names!r}.")
    inside = model._flatten_layers(include_self=False)
    inside = [layer for layer in inside if not isinstance(layer, keras.layers.InputLayer)]
    known = list(dict.fromkeys(layer.name for layer in inside))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"Layers to be recomputed must be in the model. It has {known}. Received: {unknown}.")
    # Selects all layers with a name: layers inside different layers may have the same name.
    return [layer for layer in inside if layer.name in names]


def _children(layer: Any) -> list[Any]:
    return [inner for inner in layer._layers if not isinstance(inner, (keras.layers.InputLayer, keras.metrics.Metric))]


def _recomputed(layer: Any, offload: bool, *args: Any, **kwargs: Any) -> Any:
    """Calls a layer's own `call` such that a tape holds only its inputs."""
    is_quantized = getattr(layer, "quantization_mode", None) is not None
    call = functools.partial(type(layer).quantized_call if is_quantized else type(layer).call, layer)
    flat = keras.tree.flatten((args, kwargs))
    if layer_api.in_stateless_scope() or not layer_api.may_recompute(flat):
        return call(*args, **kwargs)
    indices = [i for i, value in enumerate(flat) if keras.ops.is_tensor(value) or isinstance(value, SplitTensor)]
    inputs = [flat[i] for i in indices]
    masks = metadata_of(inputs, MASK)
    form: dict[str, Any] = {}

    def compute(*tensors: Any) -> list[Any]:
        rest = iter(tensors)
        own = with_tensors(inputs, rest)
        set_metadata(own, MASK, [None if mask is None else next(rest) for mask in masks])
        filled = list(flat)
        for i, tensor in zip(indices, own, strict=True):
            filled[i] = tensor
        own_args, own_kwargs = keras.tree.pack_sequence_as((args, kwargs), filled)
        outputs = call(*own_args, **own_kwargs)
        made = keras.tree.flatten(outputs)
        added = list(_losses_taken(layer))
        form.update(outputs=outputs, made=made, masks=metadata_of(made, MASK), logits=metadata_of(made, LOGITS))
        return [*tensors_of(made), *not_none(form["masks"]), *not_none(form["logits"]), *added]

    # Uses the variables' own flags, as a model does: a frozen layer may contain trainable adapters.
    trained = {id(variable): variable for variable in layer.variables if variable.trainable}
    others = [variable for variable in layer.variables if id(variable) not in trained]

    def recompute(state: Sequence[Any], *tensors: Any) -> list[Any]:
        # With the state from before the first computation it draws the same numbers; the scope drops its changes.
        with keras.StatelessScope(list(zip(others, state, strict=True)), collect_losses=True):
            return compute(*tensors)

    given = [*tensors_of(inputs), *not_none(masks)]
    # Losses from an earlier call of the layer are kept, but do not belong to this one.
    before = list(_losses_taken(layer))
    results = iter(layer_api.recomputed(compute, given, list(trained.values()), others, recompute, offload=offload))
    outputs = with_tensors(form["made"], results)
    for name, values in ((MASK, form["masks"]), (LOGITS, form["logits"])):
        set_metadata(outputs, name, [None if value is None else next(results) for value in values])
    for loss in (*before, *results):
        layer.add_loss(loss)
    return keras.tree.pack_sequence_as(form["outputs"], outputs)


def _losses_taken(layer: Any) -> Iterator[Any]:
    """Yields the losses that the layers inside have added, and then removes them from these layers."""
    for inner in layer._flatten_layers():
        yield from inner._get_own_losses()
    layer._clear_losses()
