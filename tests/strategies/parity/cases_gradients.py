"""Parity of programs that read or change gradients before the optimizer: they see those of the global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tests.strategies.parity.cases_models import custom_loop
from tests.strategies.parity.harness import Case, Model, fit_arrays, targets, vectors

Gradients = Sequence[Any]
#: Takes a model and a batch, and trains the model with it; returns logs.
Step = Callable[[Any, Any, Any], dict[str, Any]]

opt = keras.optimizers


def made(step: Step | None = None, optimizer: Callable[[], Any] = lambda: opt.SGD(0.05), **compiled: Any) -> Any:
    """Returns a maker of a model that trains by `step`, or as Keras does."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data) if step is None else step(self, *data)

    def make() -> Model:
        start = keras.initializers.GlorotUniform
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(7, "tanh", name="first", kernel_initializer=start(3))(inputs)
        model = Own(inputs, keras.layers.Dense(1, name="second", kernel_initializer=start(4))(hidden))
        model.compile(optimizer(), "mse", **compiled)
        return model

    return make


def taken(model: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """Returns the model's loss and its gradients."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    return loss, tape.gradient(loss, model.trainable_variables)


def changed(change: Callable[[list[Any], list[Any]], Gradients]) -> Step:
    """Returns a step that changes gradients before it applies them."""

    def step(model: Any, x: Any, y: Any) -> dict[str, Any]:
        loss, gradients = taken(model, x, y)
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(change(gradients, variables), variables, strict=True))
        return {"loss": loss, "norm": tf.linalg.global_norm(gradients)}

    return step


def sharpness_aware(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Trains by SAM (Foret et al., arXiv:2010.01412): the gradient at the worst nearby point."""
    loss, gradients = taken(model, x, y)
    scale = 0.1 / (tf.linalg.global_norm(gradients) + 1e-12)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_add(scale * gradient)
    _, there = taken(model, x, y)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_sub(scale * gradient)
    model.optimizer.apply_gradients(zip(there, model.trainable_variables, strict=True))
    return {"loss": loss}


def two_tasks(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Trains by PCGrad (Yu et al., arXiv:2001.06782): where gradients of two losses conflict, one is projected."""
    with tf.GradientTape(persistent=True) as tape:
        predicted = model(x, training=True)
        first, second = ops.mean(ops.square(predicted - y)), ops.mean(ops.square(predicted + y))
    ours, theirs = (tape.gradient(loss, model.trainable_variables) for loss in (first, second))
    dot = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(ours, theirs, strict=True)])
    square = tf.add_n([tf.reduce_sum(b * b) for b in theirs])
    joined = [a - tf.minimum(dot, 0.0) / square * b + b for a, b in zip(ours, theirs, strict=True)]
    model.optimizer.apply_gradients(zip(joined, model.trainable_variables, strict=True))
    return {"first": first, "second": second, "dot": dot}


def inner_step(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Trains by MAML (Finn et al., arXiv:1703.03400): a gradient through a step of gradient descent."""

    def forward(weights: Sequence[Any], x: Any) -> Any:
        return tf.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3]

    with tf.GradientTape() as outer:
        weights = [tf.convert_to_tensor(variable) for variable in model.trainable_variables]
        with tf.GradientTape() as inner:
            inner.watch(weights)
            before = tf.reduce_mean(tf.square(forward(weights, x) - y))
        fast = [w - 0.3 * g for w, g in zip(weights, inner.gradient(before, weights), strict=True)]
        after = tf.reduce_mean(tf.abs(forward(fast, 0.5 * x) - y))
    gradients = outer.gradient(after, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return {"before": before, "after": after}


def penalized(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Trains with the norm of the gradient in the loss, which needs second derivatives."""
    variables = model.trainable_variables
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        squares = [tf.reduce_sum(tf.square(each)) for each in inner.gradient(loss, variables)]
        total = loss + 0.1 * tf.add_n(squares)
    model.optimizer.apply_gradients(zip(outer.gradient(total, variables), variables, strict=True))
    return {"loss": total}


def assigned(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Descends without an optimizer."""
    loss, gradients = taken(model, x, y)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_sub(0.05 * tf.sign(gradient) * tf.sqrt(tf.abs(gradient)))
    return {"loss": loss}


def adversarial(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Trains by FGSM (Goodfellow et al., arXiv:1412.6572): the gradient with respect to rows stays with them."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = model.compute_loss(x, y, model(x))
    return changed(lambda gradients, _: gradients)(model, x + 0.1 * tf.sign(tape.gradient(loss, x)), y)


def derived_by_hand(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Applies a gradient that no tape has taken."""
    kernel, bias = model.get_layer("second").trainable_variables
    hidden = model.get_layer("first")(x)
    error = hidden @ kernel + bias - y
    number = tf.cast(tf.shape(x)[0], tf.float32)
    gradients = [tf.matmul(hidden, error, transpose_a=True) / number, tf.reduce_mean(error, axis=0)]
    model.optimizer.apply_gradients(zip(gradients, [kernel, bias], strict=True))
    return {"loss": tf.reduce_mean(tf.square(error))}


def symbolic(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Asks the graph for gradients, without a tape."""
    loss = tf.reduce_mean(tf.square(model(x) - y))
    gradients = tf.gradients(loss, [variable.value for variable in model.trainable_variables])
    clipped, norm = tf.clip_by_global_norm(gradients, 0.1)
    model.optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))
    return {"loss": loss, "norm": norm}


def scaled_by_upstream(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Scales the loss by `output_gradients`, as for half precision."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x))
    gradients = tape.gradient(loss, model.trainable_variables, output_gradients=tf.constant(8.0))
    unscaled = [gradient / 8.0 for gradient in gradients]
    model.optimizer.apply_gradients(zip(unscaled, model.trainable_variables, strict=True))
    return {"loss": loss}


def clipped_by_row(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Trains by DP-SGD (Abadi et al., arXiv:1607.00133), without its noise: clips the gradient of each row."""
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        losses = tf.reduce_mean(tf.square(model(x) - y), axis=1)
    by_row = tape.jacobian(losses, variables)
    squares = tf.add_n([tf.reduce_sum(tf.reshape(each, [tf.shape(each)[0], -1]) ** 2, axis=1) for each in by_row])
    factors = tf.minimum(1.0, 0.2 / tf.sqrt(squares + 1e-12))
    means = [tf.reduce_mean(each * tf.reshape(factors, [-1, *[1] * (len(each.shape) - 1)]), axis=0) for each in by_row]
    model.optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
    return {"loss": tf.reduce_mean(losses)}


class GathersByHand(keras.Model):
    """Applies the sum of two steps' gradients at every second step, in a conditional."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sums = [
            self.add_weight(shape=v.shape, initializer="zeros", trainable=False) for v in self.trainable_weights
        ]
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        #: In place of the optimizer that is given to `compile`, which Keras builds before the first step.
        self.unbuilt: Any = None

    def train_step(self, data: Any) -> Any:
        loss, gradients = taken(self, *data)
        variables = self.trainable_variables
        optimizer = self.unbuilt or self.optimizer
        self.steps.assign_add(1)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / 2)

        def apply() -> tf.Tensor:
            optimizer.apply_gradients((tf.convert_to_tensor(t), v) for t, v in zip(self.sums, variables, strict=True))
            for total in self.sums:
                total.assign(tf.zeros(total.shape))
            return tf.constant(True)

        tf.cond(tf.equal(tf.convert_to_tensor(self.steps) % 2, 0), apply, lambda: tf.constant(False))
        return {"loss": loss}


def gathered_by_hand() -> Model:
    inputs = keras.Input((6,))
    model = GathersByHand(inputs, keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(3))(inputs))
    model.compile(opt.SGD(0.1, momentum=0.5), "mse")
    return model


class AdaptiveClipping(keras.optimizers.SGD):
    """Clips by the norm of the weight (Brock et al., arXiv:2102.06171), in the method that gets the gradients first."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        pairs = []
        for gradient, variable in grads_and_vars:
            limit = 0.1 * tf.maximum(tf.norm(tf.convert_to_tensor(variable)), 1e-3)
            pairs.append((gradient * limit / tf.maximum(tf.norm(gradient), limit), variable))
        return super().apply_gradients(pairs)


class ClipsInApply(keras.optimizers.Adam):
    """Clips all gradients together in ``apply``."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply(tf.clip_by_global_norm(grads, 0.05)[0], trainable_variables)


def penalized_by_the_model() -> Model:
    """Returns a model with Keras' own step, and a norm of gradients in ``compute_loss``."""

    class Penalized(keras.Model):
        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(x, y, y_pred, *args, **kwargs)
            if not kwargs.get("training", True):
                return loss
            with tf.GradientTape() as tape:
                again = tf.reduce_mean(tf.square(self(x) - y))
            return loss + 0.1 * tf.linalg.global_norm(tape.gradient(again, self.trainable_variables))

    inputs = keras.Input((6,))
    model = Penalized(inputs, keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(3))(inputs))
    model.compile(opt.SGD(0.05), "mse")
    return model


def centralized(gradients: list[Any], _: list[Any]) -> Gradients:
    """Centralizes gradients (Yong et al., arXiv:2004.01461)."""
    return [g - tf.reduce_mean(g, axis=0, keepdims=True) if len(g.shape) > 1 else g for g in gradients]


def with_noise(gradients: list[Any], _: list[Any]) -> Gradients:
    """Adds the same seeded noise on all replicas."""
    return [g + 0.1 * tf.random.stateless_normal(g.shape, seed=[1, i]) for i, g in enumerate(gradients)]


@keras.saving.register_keras_serializable("parity")
class OwnGradients(keras.layers.Layer):
    """Recomputes a product in the backward pass, and scales it with a gradient that differs from the true one."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 5), initializer=keras.initializers.GlorotUniform(5))
        self.scale = self.add_weight(shape=(5,), initializer="ones")

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def scaled(rows: Any) -> Any:
            def backward(upstream: Any, variables: Any) -> Any:
                return upstream * self.scale, [0.5 * tf.reduce_sum(upstream * rows, 0) for _ in variables]

            return rows * self.scale, backward

        return scaled(tf.recompute_grad(lambda rows: tf.tanh(rows @ self.kernel))(x))


def with_own_gradients() -> Model:
    start = keras.initializers.GlorotUniform(3)
    model = keras.Sequential([keras.Input((6,)), OwnGradients(), keras.layers.Dense(1, kernel_initializer=start)])
    model.compile(opt.SGD(0.05), "mse")
    return model


_MAKERS: dict[str, Any] = {
    "clip_by_norm in train_step": made(changed(lambda g, _: [tf.clip_by_norm(each, 0.1) for each in g])),
    "clip_by_global_norm in train_step": made(changed(lambda g, _: tf.clip_by_global_norm(g, 0.1)[0])),
    "clip_by_value in train_step, run_eagerly": made(
        changed(lambda g, _: [tf.clip_by_value(each, -0.01, 0.01) for each in g]), run_eagerly=True
    ),
    "weight decay in train_step, steps_per_execution=2": made(
        changed(lambda g, v: [each + 0.1 * w for each, w in zip(g, v, strict=True)]), steps_per_execution=2
    ),
    "sign of gradients": made(changed(lambda g, _: [0.1 * tf.sign(each) for each in g])),
    "gradients divided by their norms": made(changed(lambda g, _: [each / (tf.norm(each) + 1e-6) for each in g])),
    "centralized gradients": made(changed(centralized)),
    "gradients with seeded noise": made(changed(with_noise)),
    "clip_by_global_norm in train_step, gradient_accumulation_steps": made(
        changed(lambda g, _: tf.clip_by_global_norm(g, 0.1)[0]), lambda: opt.SGD(0.05, gradient_accumulation_steps=2)
    ),
    "clip_by_global_norm in train_step, loss scale": made(
        changed(lambda g, _: tf.clip_by_global_norm(g, 0.1)[0]), lambda: opt.LossScaleOptimizer(opt.Adam(0.01))
    ),
    "sharpness-aware minimization": made(sharpness_aware),
    "projected gradients of two losses": made(two_tasks),
    "gradient through a step of descent": made(inner_step),
    "norm of gradients in the loss": made(penalized),
    "norm of gradients in compute_loss": penalized_by_the_model,
    "assign_sub by hand": made(assigned),
    "fast gradient sign": made(adversarial),
    "gradient without a tape": made(derived_by_hand),
    "tf.gradients": made(symbolic),
    "output_gradients": made(scaled_by_upstream),
    "recompute_grad and custom_gradient": with_own_gradients,
    "gradients of rows, clipped": made(clipped_by_row),
    "gradients gathered by hand, tf.cond around apply_gradients": gathered_by_hand,
    "optimizer that overrides apply_gradients": made(None, lambda: AdaptiveClipping(0.05)),
    "optimizer that overrides apply": made(None, lambda: ClipsInApply(0.01)),
    "optimizer that overrides apply, gradient_accumulation_steps": made(
        None, lambda: ClipsInApply(0.01, gradient_accumulation_steps=2)
    ),
}


def clipping_loop_model() -> Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.optimizer = ClipsInApply(0.01, gradient_accumulation_steps=2)
    return model


CASES = [
    *(Case(name, make, fit_arrays(vectors(), targets(), predict=False)) for name, make in _MAKERS.items()),
    Case("custom loop, optimizer that overrides apply", clipping_loop_model, custom_loop(scaled_by_keras=False)),
]
