"""Layers that treat each channel, or each element, by itself: they take a tensor in pieces and leave it in pieces.

Between a column-parallel and a row-parallel layer, they save gathering the pieces and cutting them again.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_ext.keras_versions import renormalizes
from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.layer import AtShard, SplitLayer
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api

# Weights of a BatchNormalization that it assigns itself; the last three with ``renorm=True`` only.
_STATES = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")

# The distance between shards' seeds: 2**31 / pi, made odd. It is far from the numbers that replicas add to a seed, so
# that no shard draws the same numbers as another.
_SEED_STRIDE = 0x28BE60DB


@layer_api.saved_as(keras.layers.BatchNormalization)
class ChannelSplitBatchNormalization(SplitLayer, keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` whose channels are split over the mesh axis "tensor".

    Each of t shards holds scale, offset and moving statistics of ``channels / t`` channels. If the input is in pieces
    of the channels, each shard normalises its piece, and the output stays in pieces. An input that is whole, or cut
    along another dimension, is normalised whole, on the first shard's device. In both cases the results are those of
    the plain layer, and the statistics are taken over the same replicas.

    Under a strategy without that axis, and without a strategy, it is a ``BatchNormalization``. ``get_weights`` and
    files have the weights of a ``BatchNormalization``, and it is saved as one.

    Args:
        *args: as in ``keras.layers.BatchNormalization``, as are all others.
        **kwargs: likewise. t must divide the size along `axis`.

    Input shape:
        Any with channels along `axis`; in pieces along it, ``channels / t`` each. A mask has one dimension less.

    Output shape:
        That of the input; in pieces of the channels if the input is.

    Raises:
        ValueError: t does not divide the number of channels.

    Source: Ioffe and Szegedy, arXiv:1502.03167.
    """

    def build(self, input_shape: Any) -> None:
        """Makes the shards of scale, offset and statistics."""
        self.place_shards()
        channels = input_shape[self.axis]
        if self.scale:
            self.gamma = self._add(
                "gamma", channels, self.gamma_initializer, self.gamma_regularizer, self.gamma_constraint
            )
        if self.center:
            self.beta = self._add("beta", channels, self.beta_initializer, self.beta_regularizer, self.beta_constraint)
        self.moving_mean = self._add_state("moving_mean", channels, self.moving_mean_initializer)
        self.moving_variance = self._add_state("moving_variance", channels, self.moving_variance_initializer)
        if renormalizes(self):

            def roots(shape: Any, dtype: Any = None) -> Any:
                return ops.sqrt(_clone(self.moving_variance_initializer)(shape, dtype=dtype))

            self.moving_stddev = self._add_state("moving_stddev", channels, roots)
            self.renorm_mean = self._add_state("renorm_mean", channels, _clone(self.moving_mean_initializer))
            self.renorm_stddev = self._add_state("renorm_stddev", channels, roots)
        self.input_spec = keras.InputSpec(ndim=len(input_shape), axes={self.axis: channels})
        self._reduction_axes = [i for i in range(len(input_shape)) if i != self.axis % len(input_shape)]
        self.built = True

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalises the input; if `training`, by the batch's statistics, with which it updates the moving ones."""
        shards = self._placed()
        names = [name for name in ("gamma", "beta", *_STATES) if getattr(self, name, None) is not None]
        weights: list[layer_api.SplitWeight] = [getattr(self, name) for name in names]
        states = [weight for weight in weights if training and self.trainable and weight.name in _STATES]

        def normalize(x: Any, *values: Any) -> list[Any]:
            own = dict(zip(names, values, strict=True))
            kept = {name: _State(value) for name, value in own.items() if name in _STATES}
            y = keras.layers.BatchNormalization.call(AtShard(self, **own | kept), x, training=training, mask=mask)
            return [y, *(kept[state.name].value for state in states)]

        in_pieces = isinstance(inputs, SplitTensor) and inputs.dim == self.axis % inputs.ndim
        if in_pieces or shards.count == 1:
            pieces = []
            for i, x in zip(shards.owned, self.pieces_of(inputs, self.axis), strict=True):
                y, *updated = shards.run(i, normalize, x, *(weight.shards[i] for weight in weights))
                pieces.append(y)
                # Outside of `run`, in program order: functions with a custom gradient should have no side effects.
                for weight, value in zip(states, updated, strict=True):
                    weight.shards[i].assign(value)
            return self.in_pieces(pieces, self.axis) if in_pieces else pieces[0]
        x = self._as_input(inputs.whole() if isinstance(inputs, SplitTensor) else inputs)
        whole = [self._on_main_part(weight) for weight in weights]
        y, *updated = shards.run(shards.owned[0], normalize, x, *whole)
        for weight, value in zip(states, updated, strict=True):
            parts = shards.scatter(value, 0, weight.sizes)
            for shard, part in zip(shards.select_owned(weight.shards), parts, strict=True):
                shard.assign(part)
        return y

    def _on_main_part(self, weight: layer_api.SplitWeight) -> Any:
        shards = self._placed()
        # Multiplies on the shard's device, so that the gradient is computed there, too; the gradient of a join alone
        # would be computed on the main device.
        values = shards.run_each(lambda value: ops.multiply(value, 1.0), shards.select_owned(weight.shards))
        return shards.gather(values, 0)

    def _add(
        self, name: str, channels: int, initializer: Any, regularizer: Any, constraint: Any
    ) -> layer_api.SplitWeight:
        return self.add_split_weight(
            name, (channels,), 0, initializer=initializer, regularizer=regularizer, constraint=constraint
        )

    def _add_state(self, name: str, channels: int, initializer: Any) -> layer_api.SplitWeight:
        return self.add_split_weight(name, (channels,), 0, initializer=initializer, trainable=False)


class _State:
    """A placeholder for a variable, which keeps the value that is assigned."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def assign(self, value: Any) -> None:
        """Keeps the value."""
        # Keras squeezes masked moments: those of a shard with one channel have lost their dimension.
        self.value = ops.reshape(value, self.value.shape)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        return self.value if dtype is None else ops.cast(self.value, dtype)


def _clone(initializer: Any) -> Any:
    """Returns a clone of an initializer, as Keras makes one before it uses it for a second weight."""
    return initializer.clone() if isinstance(initializer, keras.Initializer) else initializer


class _Shardwise(SplitLayer):
    """Mix-in before a plain layer without weights: applies it to each piece, on the piece's device."""

    def call(self, inputs: Any) -> Any:
        """Applies the plain layer to each piece, or to the whole tensor if it needs that or there are no pieces."""
        dim = self._dim_of_output(inputs) if isinstance(inputs, SplitTensor) else None
        if dim is None:
            return super().call(self._as_input(inputs))
        plain = super().call
        self.shards = inputs.shards
        return self.in_pieces(inputs.each(lambda x: plain(self._as_input(x))), dim, inputs.size)

    def _dim_of_output(self, inputs: SplitTensor) -> int | None:
        """Returns the dim along which the output is cut, as `inputs` is; None if the layer needs it whole."""
        return inputs.dim


class _ShardwiseImages(_Shardwise):
    """Mix-in before a plain layer that treats each channel of an image by itself."""

    def _dim_of_output(self, inputs: SplitTensor) -> int | None:
        axis = -1 if self.data_format == "channels_last" else 1
        return axis if inputs.dim == axis % inputs.ndim else None


@layer_api.saved_as(keras.layers.Activation)
class ShardwiseActivation(_Shardwise, keras.layers.Activation):
    """``keras.layers.Activation`` that does not gather pieces, if it is one of Keras' elementwise functions."""

    def _dim_of_output(self, inputs: SplitTensor) -> int | None:
        return inputs.dim if is_elementwise(self.activation) else None


@layer_api.saved_as(keras.layers.ReLU)
class ShardwiseReLU(_Shardwise, keras.layers.ReLU):
    """``keras.layers.ReLU`` that does not gather pieces."""


@layer_api.saved_as(keras.layers.LeakyReLU)
class ShardwiseLeakyReLU(_Shardwise, keras.layers.LeakyReLU):
    """``keras.layers.LeakyReLU`` that does not gather pieces."""


@layer_api.saved_as(keras.layers.MaxPooling2D)
class ShardwiseMaxPooling2D(_ShardwiseImages, keras.layers.MaxPooling2D):
    """``keras.layers.MaxPooling2D`` that does not gather pieces of the channels."""


@layer_api.saved_as(keras.layers.AveragePooling2D)
class ShardwiseAveragePooling2D(_ShardwiseImages, keras.layers.AveragePooling2D):
    """``keras.layers.AveragePooling2D`` that does not gather pieces of the channels."""


@layer_api.saved_as(keras.layers.GlobalAveragePooling2D)
class ShardwiseGlobalAveragePooling2D(_ShardwiseImages, keras.layers.GlobalAveragePooling2D):
    """``keras.layers.GlobalAveragePooling2D`` that does not gather pieces of the channels."""


@layer_api.saved_as(keras.layers.ZeroPadding2D)
class ShardwiseZeroPadding2D(_ShardwiseImages, keras.layers.ZeroPadding2D):
    """``keras.layers.ZeroPadding2D`` that does not gather pieces of the channels."""


@layer_api.saved_as(keras.layers.Dropout)
class ShardwiseDropout(_Shardwise, keras.layers.Dropout):
    """``keras.layers.Dropout`` that does not gather pieces, and draws a mask for each.

    The elements that are dropped depend on the number of shards; the first shard draws with the plain layer's seed. If
    `noise_shape` is 1 along the cut dim, so that all pieces have one mask, they are gathered.

    Example:

        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            up = keras_ext.ColumnParallelDense(8, "relu", gather_output=False)
            down = keras_ext.RowParallelDense(4)
            model = keras.Sequential([keras.Input((4,)), up, keras_ext.ShardwiseDropout(0.1), down])
    """

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """Drops elements of each piece if `training`."""
        if not isinstance(inputs, SplitTensor) or self._dim_of_output(inputs) is None:
            return keras.layers.Dropout.call(self, self._as_input(inputs), training=training)
        self.shards = inputs.shards
        if not training or self.rate == 0:
            return self.in_pieces(inputs.pieces, inputs.dim, inputs.size)
        # The shard's number changes the seed that is used, not the one that is stored, which is the plain layer's.
        seed = self.seed_generator.next()
        noise_shape = self.noise_shape and tuple(
            None if dim == inputs.dim else size for dim, size in enumerate(self.noise_shape)
        )

        def dropped(x: Any, seed: Any, offset: Any) -> Any:
            own = _Seed(ops.add(seed, offset))
            return keras.random.dropout(self._as_input(x), self.rate, noise_shape=noise_shape, seed=own)

        pieces = []
        for i, piece in zip(inputs.shards.owned, inputs.pieces, strict=True):
            offset = ops.convert_to_tensor([i * _SEED_STRIDE % 2**31, 0], dtype=seed.dtype)
            pieces.append(inputs.shards.run(i, dropped, piece, seed, offset))
        return self.in_pieces(pieces, inputs.dim, inputs.size)

    def _dim_of_output(self, inputs: SplitTensor) -> int | None:
        one_mask = self.noise_shape is not None and self.noise_shape[inputs.dim] == 1
        return None if one_mask else inputs.dim


class _Seed(keras.random.SeedGenerator):
    """A seed that is already drawn, for functions of Keras that take a number or a generator."""

    def __init__(self, seed: Any) -> None:
        # The base class' constructor, which would make a variable, is not called.
        self._seed = seed

    def next(self, ordered: bool = True) -> Any:
        """Returns the seed."""
        return self._seed
