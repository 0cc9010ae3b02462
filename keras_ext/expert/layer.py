"""A mixture-of-experts feed-forward layer: each token is routed to its top-k experts."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_ext.expert import arguments, plain_form
from keras_ext.expert.bank import check_banks, weighted_sum_over_experts
from keras_ext.expert.loads import Load, kept_choices, load_balancing_loss, z_loss
from keras_ext.expert.routing import RouterActivation, choose, probabilities_of, scores_of
from strategies import layer_api


@layer_api.saved_as(keras.Model)
class MixtureOfExperts(keras.Layer):
    """A mixture of experts: a router sends each token to `top_k` of many feed-forward networks and weights their sum.

    Tokens are sorted by expert, and each expert computes only its own tokens: `top_k / num_experts` of the work of all.
    No token is dropped unless `capacity_factor` is set. Under data parallelism, losses, dropped choices and updates of
    the router bias are computed from the global batch, so they equal those of one device. In a pipeline with several
    micro-batches, they are computed from each micro-batch, because the backward pass of the first micro-batch begins
    before the router has seen the last one.

    Input and output are `(batch, ..., features)`. A mask is passed on. Masked tokens are computed, but count neither
    for losses nor for the router bias; with a `capacity_factor`, training drops all their choices.

    A saved file contains a model of plain Keras layers in place of this layer. It computes all experts for every token
    and opens without this package; `keras_ext.replace_experts` converts it back to this layer. In plain Keras, its
    predictions are the same, but it trains without losses, bias updates, jitter and capacity, and does not pass masks
    on.

    Along the mesh axis "expert", the experts are partitioned over the replicas; along "tensor", each expert is split
    along `hidden_dim` over the devices of a replica.

    XLA cannot compile this layer, because the shapes of matrices depend on the router. With ``jit_compile=True`` Keras
    warns and continues without XLA.

    Args:
        num_experts: number of experts.
        hidden_dim: the hidden size of each expert; divisible by the size of the mesh axis "tensor".
        top_k: number of experts that each token takes.
        activation: the activation of the experts' first projection; with the mesh axis "tensor", it must be an
            elementwise Keras activation.
        gated: experts with a third matrix, ``down(activation(gate(x)) * up(x))``; else ``down(activation(up(x)))``.
        router_activation: ``"softmax"`` or ``"sigmoid"``. The router computes in float32.
        normalize_top_k: divide the weights of a token's choices by their sum.
        router_bias: the update step of a bias per expert: after a training step, the bias grows by it if the expert had
            less than the mean load, and falls by it if more. The bias affects the choice of experts, but not the
            weights of their outputs. None for no bias.
        router_jitter: in training, the router sees inputs times random numbers in ``1 - jitter .. 1 + jitter``.
        shared_hidden_dim: the hidden size of an additional expert that computes every token, with weight 1. None for no
            shared expert.
        load_balancing_loss: factor of the loss ``num_experts * sum(f * P)`` that is added in training, where f is an
            expert's share of the choices, P its mean probability.
        z_loss: factor of the mean squared log-sum-exp of the router's logits, also added in training.
        capacity_factor: in training, an expert takes ``ceil(tokens * top_k * capacity_factor / num_experts)`` choices
            of the global batch, first choices before second ones, in the order of the batch; others add nothing.
        use_bias: whether the experts and the shared expert have biases. The router's projection has none.
        kernel_initializer: initializer of all matrices.
        bias_initializer: initializer of biases.
        kernel_regularizer: regularizer of all matrices, including the router's.
        bias_regularizer: regularizer of biases.
        kernel_constraint: constraint of the experts' matrices.
        bias_constraint: constraint of the experts' biases.
        **kwargs: the base layer's arguments, such as `name`, `dtype` and `activity_regularizer`.

    Raises:
        ValueError: an argument is invalid.

    Example:

        model = keras.Sequential([keras.Input((16, 32)), keras_ext.MixtureOfExperts(8, 64, top_k=2)])
        model.compile("adam", "mse")
        model.save("model.keras")

    Source: Shazeer et al., arXiv:1701.06538; Fedus et al., arXiv:2101.03961; the bias: Wang et al., arXiv:2408.15664.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_dim: int,
        top_k: int = 2,
        *,
        activation: Any = "silu",
        gated: bool = True,
        router_activation: RouterActivation = "softmax",
        normalize_top_k: bool = True,
        router_bias: float | None = None,
        router_jitter: float = 0.0,
        shared_hidden_dim: int | None = None,
        load_balancing_loss: float = 0.01,
        z_loss: float = 0.0,
        capacity_factor: float | None = None,
        use_bias: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_experts = num_experts
        self.hidden_dim = hidden_dim
        self.top_k = top_k
        self.activation = keras.activations.get(activation)
        self.gated = gated
        self.router_activation = router_activation
        self.normalize_top_k = normalize_top_k
        self.router_bias = router_bias
        self.router_jitter = router_jitter
        self.shared_hidden_dim = shared_hidden_dim
        self.load_balancing_loss = load_balancing_loss
        self.z_loss = z_loss
        self.capacity_factor = capacity_factor
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        arguments.check(self)
        self.supports_masking = True
        # The shapes of matrices depend on values, which XLA cannot compile.
        self.supports_jit = False
        self.seed_generator = keras.random.SeedGenerator() if router_jitter else None
        # In a namespace, which Keras does not track: the metric is not saved with the model.
        self._load_metric = types.SimpleNamespace(value=None)

    @property
    def metrics(self) -> list[Any]:
        """The layer's metrics, including that of `track_expert_load`."""
        return [*super().metrics, *([] if self._load_metric.value is None else [self._load_metric.value])]

    def track_load(self, metric: Any) -> None:
        """Sets the metric to which each call adds the global batch's choices of each expert; keeps an existing one."""
        self._load_metric.value = self._load_metric.value or metric

    @property
    def synchronized(self) -> bool:
        """True if this layer runs a collective over replicas while it computes, as a synchronized batch norm does."""
        return self._looks_at_load or layer_api.lie_on_replicas(self.variables)

    @property
    def _looks_at_load(self) -> bool:
        makes = (self.load_balancing_loss, self.z_loss, self.router_bias, self.capacity_factor)
        return any(makes) or self._load_metric.value is not None

    @property
    def arguments_of_batch(self) -> tuple[str, ...]:
        """The arguments, among those that are set, whose effect in training is computed from the global batch."""
        return tuple(name for name in ("router_bias", "capacity_factor") if getattr(self, name))

    @property
    def left_out_of_files(self) -> tuple[str, ...]:
        """The arguments, among those that are set, that the plain form in files only notes: it trains without them."""
        names = ("router_jitter", "load_balancing_loss", "z_loss", "router_bias", "capacity_factor")
        return tuple(name for name in names if getattr(self, name))

    def build(self, input_shape: Sequence[Any]) -> None:
        """Creates the Keras layers that hold the weights, in the order in which files have them."""
        # Installs the Keras hooks, also without a strategy: saving as the plain form, and the refusal of unseeded
        # random draws.
        layer_api.replica_parts()
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})
        self.num_dims = len(input_shape)
        inner = plain_form.inner_layers(self, int(input_shape[-1]))
        #: Named as in a Functional model, so that weights have the same paths in files.
        self.layers = list(inner.values())
        check_banks(self.num_experts, (self.kernel_regularizer, self.bias_regularizer), self.name)
        for layer, shape in plain_form.shapes_of_inputs(self, inner, tuple(input_shape)):
            are_experts = layer.name in ("gate", "up", "down")
            with layer_api.sharded_rows("expert") if are_experts else contextlib.nullcontext():
                layer.build(shape)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Returns for each token the weighted sum of its experts' outputs, plus the shared expert's output.

        Args:
            inputs: `(batch, ..., features)`.
            training: if True, losses are added, and jitter, capacity and updates of the bias are active.
            mask: bool, `(batch, ...)`.
        """
        inner = self.by_name()
        shape, features = ops.shape(inputs), inputs.shape[-1]
        tokens = ops.reshape(inputs, (-1, features))
        logits = inner["router"](self._jittered(inputs) if training else inputs)
        scores = scores_of(logits, self.router_activation)
        biased = inner["selection"](scores) if "selection" in inner else None
        logits, scores = (ops.reshape(each, (-1, self.num_experts)) for each in (logits, scores))
        selection = scores if biased is None else ops.reshape(biased, (-1, self.num_experts))
        routes = choose(scores, selection, self.top_k, normalize=self.normalize_top_k)
        counted = _counted(mask, shape)
        is_kept = self._track_load(logits, scores, routes.experts, counted, training=bool(training))
        banks, feed_forward = self._experts()
        # None if the banks are not split.
        shards = getattr(inner["down"], "shards", None)
        outputs = weighted_sum_over_experts(
            tokens, routes.experts, ops.cast(routes.weights, self.compute_dtype), banks, feed_forward, is_kept, shards
        )
        # The sort by experts is undone, so row i of the output belongs to row i of the input, which the ops do not
        # show.
        outputs = layer_api.as_rows(ops.reshape(outputs, shape), inputs)
        return outputs if self.shared_hidden_dim is None else outputs + plain_form.shared_output(inner, inputs)

    def by_name(self) -> dict[str, Any]:
        """Returns the layers that hold the weights: "router", "up", "down", ..."""
        # Not stored as an attribute: Keras would track it, and look for weights there before it looks into `layers`.
        return {layer.name: layer for layer in self.layers}

    def _jittered(self, inputs: Any) -> Any:
        if not self.router_jitter:
            return inputs
        low, high = 1.0 - self.router_jitter, 1.0 + self.router_jitter
        return inputs * keras.random.uniform(
            ops.shape(inputs), low, high, dtype=self.compute_dtype, seed=self.seed_generator
        )

    def _track_load(self, logits: Any, scores: Any, experts: Any, counted: Any, *, training: bool) -> Any:
        """Updates the load metric; in training, adds losses and updates the bias.

        Returns:
            A mask of the choices that are kept, bool, `[tokens, choices]`; None if all are kept.
        """
        if not (self._looks_at_load if training else self._load_metric.value is not None):
            return None
        load = Load.from_experts(experts, self.num_experts, counted)
        if self._load_metric.value is not None:
            self._load_metric.value.update_state(load.counts)
        if not training:
            return None
        if self.load_balancing_loss:
            probabilities = probabilities_of(scores, self.router_activation)
            self.add_loss(self.load_balancing_loss * load_balancing_loss(load, probabilities, counted))
        if self.z_loss:
            self.add_loss(self.z_loss * z_loss(load, logits, counted))
        if self.router_bias:
            bias = self.by_name()["selection"].bias
            bias.assign(bias + self.router_bias * ops.sign(ops.mean(load.counts) - load.counts))
        if self.capacity_factor is None:
            return None
        return kept_choices(load, experts, self.num_experts, self.capacity_factor, counted)

    def _experts(self) -> tuple[list[Any], Any]:
        names = ["gate", "up", "down"] if self.gated else ["up", "down"]
        inner = self.by_name()
        layers = [inner[name] for name in names]
        arguments.refuse_quantized(layers, self.name)
        banks = [layer.kernel for layer in layers] + ([layer.bias for layer in layers] if self.use_bias else [])
        return banks, functools.partial(_feed_forward, self.activation, len(layers))

    def compute_output_shape(self, input_shape: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the shape of the input."""
        return tuple(input_shape)

    @classmethod
    def plain_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the config of the model that is saved in place of the layer.

        Raises:
            ValueError: the layer is not built.
        """
        if config.get("model") is None:
            raise ValueError(
                f"A MixtureOfExperts is a model of Keras' layers in files, which needs the shape of its inputs. Call "
                f"the layer, or its `build`, first. Received: {config['name']!r}, not built."
            )
        return dict(config["model"])

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Creates a layer with the same arguments, not built."""
        return super().from_config({name: value for name, value in config.items() if name != "model"})

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, and under "model" the config of the saved model, None if the layer is not built."""
        config: dict[str, Any] = {**super().get_config(), **arguments.config_of(self)}
        return {**config, "model": plain_form.model_of(self).get_config() if self.built else None}

    def __repr__(self) -> str:
        # Keras' own repr would show the name of the plain class.
        return f"<MixtureOfExperts name={self.name}, built={self.built}>"


def _feed_forward(activation: Any, num_layers: int, tokens: Any, *parts: Any) -> Any:
    kernels, biases = parts[:num_layers], parts[num_layers:] or (None,) * num_layers

    def projected(x: Any, layer: int) -> Any:
        y = ops.matmul(x, kernels[layer])
        return y if biases[layer] is None else y + biases[layer]

    hidden = activation(projected(tokens, 0))
    if num_layers == 3:
        hidden = hidden * projected(tokens, 1)
    return projected(hidden, num_layers - 1)


def _counted(mask: Any, shape: Any) -> Any:
    """Returns 1 for each token that a mask keeps, 0 for others, float32, `[tokens]`; None without a mask."""
    if mask is None:
        return None
    # A mask may have fewer dims than the tokens: for example one entry per time step, where each step is a grid of
    # tokens.
    mask = ops.reshape(ops.cast(mask, "float32"), (*ops.shape(mask), *[1] * (len(shape) - 1 - len(mask.shape))))
    return ops.reshape(ops.broadcast_to(mask, shape[:-1]), (-1,))
