"""The base of split layers, whose weights are cut into shards, but are whole in files."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_ext.keras_versions import penalty_of_rows
from keras_ext.tensor.mappings import Shards
from keras_ext.tensor.penalties import penalties_of_shards
from keras_ext.tensor.recorded_ops import RecordedTensor, as_pieces
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api


class SplitLayer(keras.Layer):
    """Mix-in before the plain layer's class.

    A subclass calls `place_shards` first in ``build``, makes its weights with `add_split_weight` and ``add_weight``,
    and sets `own_arguments`.
    """

    #: Names of the constructor's arguments that the plain layer does not have.
    own_arguments: tuple[str, ...] = ()
    #: True if ops of Keras on an output in pieces are recorded, see `recorded_ops`.
    records_ops = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shards: Shards | None = None
        # Keras' conversion of inputs would join pieces; `_as_input` converts each piece.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer as Keras does, with tensors, arrays or `SplitTensor`."""
        args, kwargs = keras.tree.map_structure(_as_tensor, (args, kwargs))
        if not self.built and any(isinstance(value, SplitTensor) for value in keras.tree.flatten(args)):
            self.build(*keras.tree.map_structure(lambda value: value.shape, args))
        output = super().__call__(*args, **kwargs)
        for value in keras.tree.flatten(output):
            layer_api.mark_whole(value.pieces if isinstance(value, SplitTensor) else [value])
        return RecordedTensor(output) if self.records_ops and isinstance(output, SplitTensor) else output

    @classmethod
    def plain_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the config of the plain layer, for files."""
        return {name: value for name, value in config.items() if name not in cls.own_arguments}

    def get_config(self) -> dict[str, Any]:
        """Returns the plain layer's config and the arguments of this class."""
        config: dict[str, Any] = super().get_config()
        return config | {name: getattr(self, name) for name in self.own_arguments}

    def place_shards(self) -> Shards:
        """Finds this layer's shards under the strategy in whose scope it is built, and returns them."""
        self.shards = Shards.present()
        return self.shards

    def add_split_weight(
        self,
        name: str,
        shape: Sequence[int],
        dim: int,
        *,
        initializer: Any,
        regularizer: Any = None,
        constraint: Any = None,
        sizes: Sequence[int] | None = None,
        trainable: bool = True,
        aggregation: str = "none",
        dtype: str | None = None,
    ) -> layer_api.SplitWeight:
        """Adds a weight that is cut along `dim` and has the initial values of the plain layer.

        Args:
            name: the weight's name in the plain layer.
            shape: of the whole weight.
            dim: the dim along which it is cut.
            initializer: of the whole weight.
            regularizer: of the whole weight.
            constraint: of the whole weight.
            sizes: of the shards along `dim`; equal ones if left out.
            trainable: whether the optimizer updates it.
            aggregation: as in Keras' ``add_weight``.
            dtype: of the weight; that of the layer's variables if left out.

        Raises:
            ValueError: `sizes` is left out, and the number of shards does not divide the size along `dim`.
        """
        shards = self._placed()
        sizes = equal_sizes(shape[dim], shards.count, f"{name} of {self.name}") if sizes is None else sizes
        weight = layer_api.SplitWeight(name, shape, dim, sizes, shards.between)
        weight.parts_of_penalty = functools.partial(penalties_of_shards, weight, shards)
        weight.constraint = keras.constraints.get(constraint)
        weight.regularizer = keras.regularizers.get(regularizer)
        whole = layer_api.settled(keras.initializers.get(initializer), shape, dtype or self.variable_dtype)
        initializers = weight.initializers_of_shards(whole, shards.owned)
        regularizers = weight.parts_of_penalty("regularizer", weight.regularizer)
        constraints = weight.parts_of_penalty("constraint", weight.constraint)
        for index in range(shards.count):
            own_shape = list(shape)
            own_shape[dim] = sizes[index]
            with shards.parts.at(tensor=index):
                shard = self.add_weight(
                    name=name if shards.count == 1 else f"{name}_{index}",
                    shape=tuple(own_shape),
                    initializer=initializers[index],
                    regularizer=regularizers[index],
                    constraint=constraints[index],
                    trainable=trainable,
                    aggregation=aggregation,
                    dtype=dtype,
                    # Cast where it is used: autocast would cast the gradient back on the device of the tape's caller.
                    autocast=False,
                )
            weight.add(shard)
        return weight

    def save_own_variables(self, store: Any) -> None:
        """Writes the plain layer's variables."""
        for i, variable in enumerate(self._whole_variables()):
            store[f"{i}"] = variable

    def load_own_variables(self, store: Any) -> None:
        """Reads the plain layer's variables.

        Raises:
            ValueError: the file has another number of variables.
        """
        self._check_load_own_variables(store)
        for i, variable in enumerate(self._whole_variables()):
            variable.assign(store[f"{i}"])

    def _check_load_own_variables(self, store: Any) -> None:
        """Refuses a file with another number of variables. Keras' layers call it, too, and would count the shards."""
        variables = self._whole_variables()
        if len(store.keys()) != len(variables):
            raise ValueError(
                f"Layer {self.name!r} expected {len(variables)} variables, {[v.name for v in variables]}. Received: "
                f"{len(store.keys())} in the file."
            )

    def quantize(self, mode: Any = None, **kwargs: Any) -> None:
        """Refuses quantization: the scales of a whole kernel are not those of its shards.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{type(self).__qualname__} {self.name!r} cannot be quantized: it is split already. Quantize the model "
            "first, then call keras_ext.parallelize, which splits layers quantized to 'int8' and leaves others whole. "
            f"Received: quantize({mode!r})."
        )

    def refuse_quantization(self) -> None:
        """Refuses quantization that the constructor's arguments ask for.

        Raises:
            ValueError: they do.
        """
        if getattr(self, "quantization_config", None) is not None or self.quantization_mode is not None:
            raise ValueError(self._refusal("quantization", f"dtype={self.dtype_policy.name!r}"))

    def __repr__(self) -> str:
        # Keras' own `__repr__` shows the name of the plain class.
        return f"<{type(self).__qualname__} name={self.name}, built={self.built}>"

    def _refusal(self, what: str, received: str) -> str:
        return (
            f"{type(self).__qualname__} {self.name!r} has no {what}. Use the plain layer where you need it, or split "
            f"the model without this layer. Received: {received}."
        )

    def _placed(self) -> Shards:
        if self.shards is None:
            raise ValueError(f"Layer {self.name!r} is not built yet: call it, or its `build`, first.")
        return self.shards

    def _whole_variables(self) -> list[Any]:
        return layer_api.joined(self._trainable_variables + self._non_trainable_variables)

    def in_pieces(self, pieces: Sequence[Any], dim: int, size: Any = None) -> SplitTensor:
        """Returns an output that stays in pieces, and adds its activity penalty, as Keras does for tensors only.

        Arguments are those of `SplitTensor`.
        """
        output = SplitTensor(pieces, dim, self._placed(), size)
        if self.activity_regularizer is not None:
            self.penalize(output.whole())
        return output

    def penalize(self, output: Any) -> None:
        """Adds the activity penalty that Keras adds for a tensor returned by a layer's call."""
        self.add_loss(penalty_of_rows(self.activity_regularizer(output), output))

    def copies_of(self, inputs: Any) -> list[Any]:
        """Returns a tensor in the compute dtype for each owned shard: all of ``inputs``."""
        shards = self._placed()
        if isinstance(inputs, SplitTensor):
            if inputs.shards.members == shards.members:
                return shards.all_gather(self._as_inputs(inputs), inputs.dim, inputs.size)
            inputs = inputs.whole()
        return shards.copy(self._as_dense_input(inputs))

    def pieces_of(self, inputs: Any, dim: int) -> list[Any]:
        """Returns a tensor in the compute dtype for each owned shard: its part of ``inputs`` along `dim`."""
        shards = self._placed()
        if isinstance(inputs, SplitTensor):
            if inputs.dim == dim % inputs.ndim and inputs.shards.members == shards.members:
                return self._as_inputs(inputs)
            inputs = inputs.whole()
        return shards.scatter(self._as_dense_input(inputs), dim)

    def check_sequence(self, input_shape: Sequence[Any]) -> None:
        """Refuses inputs without a sequence dimension to leave in pieces.

        Raises:
            ValueError: the input does not have three dimensions.
        """
        if len(input_shape) != 3:
            raise ValueError(
                f"{type(self).__qualname__} {self.name!r} has sequence_parallel=True: it takes inputs of shape (batch, "
                f"length, channels). Leave the argument out for others. Received: input_shape={tuple(input_shape)}."
            )

    def sums_of(self, partial: Sequence[Any], bias: Any, activation: Any, *, sequence_parallel: bool) -> list[Any]:
        """Adds up the shards' partial sums and the bias, and applies the activation.

        Returns:
            A list of one tensor, the whole; with `sequence_parallel`, each owned shard's part of it along dim 1.
        """
        shards = self._placed()

        def finish(y: Any, *biases: Any) -> Any:
            y = self._plus_bias(y, *biases) if biases else y
            return y if activation is None else activation(y)

        if not sequence_parallel:
            return [finish(shards.reduce(partial), *([] if bias is None else [bias]))]
        biases = [] if bias is None else [shards.copy(bias)]
        return shards.run_each(finish, shards.reduce_scatter(partial, 1), *biases)

    def _plus_bias(self, x: Any, bias: Any) -> Any:
        return keras.ops.add(x, keras.ops.cast(bias, self.compute_dtype))

    def _as_inputs(self, inputs: SplitTensor) -> list[Any]:
        """Returns the pieces in the compute dtype, each cast on its own device."""
        return inputs.each(self._as_input)

    def _as_input(self, value: Any) -> Any:
        """Returns ``value`` as a tensor in the compute dtype."""
        return self.dtype_policy.convert_input(value, self.autocast, self.input_dtype)

    def _as_dense_input(self, value: Any) -> Any:
        """Returns ``value`` as a dense tensor in the compute dtype: shards take no sparse tensors."""
        if hasattr(value, "dense_shape"):
            value = keras.ops.convert_to_tensor(value, sparse=False)
        return self._as_input(value)


def _as_tensor(value: Any) -> Any:
    """Returns the tensor, or the pieces, that a layer is called with."""
    # Keras builds a layer for the shapes of tensors only.
    return keras.ops.convert_to_tensor(value) if isinstance(value, np.ndarray) else as_pieces(value)


class AtShard:
    """A view of a layer for the plain class' methods at one shard; some attributes, such as weights, are the shard's.

    Keras' methods find weights on the object on which they are called, and each shard computes with tensors of its own.
    If these were set on the layer, Keras would track them as its weights, and other replicas' threads would see them; a
    layer for each shard would have variables of its own. So these methods, and no others, are called on this view.
    """

    def __init__(self, layer: keras.Layer, **own: Any) -> None:
        self.__dict__.update(own, _layer=layer)

    def __getattr__(self, name: str) -> Any:
        method = inspect.getattr_static(type(self._layer), name, None)
        return method.__get__(self) if inspect.isfunction(method) else getattr(self._layer, name)


def equal_sizes(size: int, count: int, what: str) -> list[int]:
    """Returns ``count`` equal sizes that add up to ``size``.

    Raises:
        ValueError: ``count`` does not divide ``size``; the message names the nearest sizes that fit.
    """
    if size % count:
        lower = size // count * count
        nearest = f"{lower} or {lower + count}" if lower else f"{count}"
        raise ValueError(
            f"{count} shards cannot hold equal parts of {what}. Use a size that {count} divides, {nearest}, or a mesh "
            f"whose 'tensor' axis divides {size}. Received: {size}."
        )
    return [size // count] * count
