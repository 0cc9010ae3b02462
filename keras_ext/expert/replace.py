"""Replaces dense expert computation in a model by sparse computation."""

from __future__ import annotations

from typing import Any

import keras

from keras_ext.cloning import Copies, copy_state, copy_training, copy_weights
from keras_ext.expert import plain_form
from keras_ext.expert.bank import check_banks
from keras_ext.expert.hub_blocks import BLOCKS, bank_of, is_dense_block, make_sparse
from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.tensor.custom_layers import is_graph
from strategies import layer_api


def replace_experts(model: Any) -> Any:
    """Returns a copy of the model in which each expert computes only its own tokens instead of all tokens.

    Weights, outputs and losses are the same. Under data parallelism, the load-balancing loss becomes that of the global
    batch. Supported are the blocks of KerasHub's Mixtral, Qwen-MoE, Qwen3-MoE, Qwen3.5-MoE and GPT-OSS; files of the
    new model are KerasHub's, and open without this package. The saved form of a `keras_ext.MixtureOfExperts` is
    supported, too, and becomes that layer again. Mixtral's blocks with jitter still train with dense computation.

    The new model has copies of the old model's weights, and, if that was compiled, of its optimizer with all slots,
    loss and metrics. The old model is unchanged; drop it to free its memory.

    Args:
        model: a Sequential or Functional model, built, such as a backbone or a task of KerasHub.

    Raises:
        ValueError: the model has no graph, or contains no supported layer.

    Example:

        keras.Sequential([keras.Input((16, 32)), keras_ext.MixtureOfExperts(8, 64)]).save("model.keras")
        model = keras_ext.replace_experts(keras.models.load_model("model.keras"))
    """
    if not is_graph(model):
        raise ValueError(
            "Experts are replaced in Sequential and Functional models; of others there is no graph to copy. Received: "
            f"{model!r}."
        )
    made: list[tuple[Any, Any]] = []

    def instead(layer: Any) -> Any:
        new = _mixture_of(layer)
        if new is not None:
            made.append((layer, new))
        return new

    with layer_api.global_state_kept():
        banks = [bank_of(layer) for layer in model._flatten_layers() if is_dense_block(layer)]
        for bank in banks:
            check_banks(int(bank[0].shape[0]), [each.regularizer for each in bank], bank[0].path)
        new = Copies(instead, rows_of_experts={id(each) for bank in banks for each in bank}).graph(model)
        copy_state(model, new)
        for plain, mixture in made:
            for layer in mixture.layers:
                layer.trainable = plain.get_layer(layer.name).trainable
            copy_weights(plain.weights, mixture.weights)
        blocks = [layer for layer in new._flatten_layers() if is_dense_block(layer)]
        for block in blocks:
            make_sparse(block)
        if not blocks and not made:
            raise ValueError(
                f"No layer computes all experts for every token. Known are KerasHub's {[name for _, name in BLOCKS]}, "
                "and what a keras_ext.MixtureOfExperts is in files. Received: "
                f"{model.name!r} with {sorted({type(layer).__qualname__ for layer in model._flatten_layers()})}."
            )
        # The strategy has broadcast only the old model's variables from rank 0.
        layer_api.agree_on(new.variables)
        copy_training(model, new)
    return new


def _mixture_of(layer: Any) -> Any:
    """Returns the sparse layer, not built, for the saved form of a mixture; None for any other layer."""
    if not is_graph(layer) or isinstance(layer, keras.Sequential) or len(layer.inputs) != 1:
        return None
    noted = plain_form.noted(layer.inputs[0].name)
    if noted is None:
        return None
    inner = {each.name: each for each in layer.layers}
    up, first = inner["up"], inner.get("gate", inner["up"])
    kinds = [
        f"{weight}_{kind}" for weight in ("kernel", "bias") for kind in ("initializer", "regularizer", "constraint")
    ]
    return MixtureOfExperts(
        inner["router"].units,
        int(up.kernel.shape[-1]),
        activation=first.activation,
        gated="gate" in inner,
        shared_hidden_dim=inner["shared_up"].units if "shared_up" in inner else None,
        use_bias=up.bias is not None,
        name=layer.name,
        dtype=up.dtype_policy,
        **noted,
        **{kind: getattr(first, kind) for kind in kinds},
    )
