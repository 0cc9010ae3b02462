"""Parity of every Keras optimizer and of the options of optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from tests.strategies.parity.harness import NUM_ROWS, Case, Model, features, fit_arrays, labels, vectors

opt = keras.optimizers

EVERY: dict[str, Callable[..., Any]] = {
    "Adadelta": lambda **kw: opt.Adadelta(1.0, **kw),
    "Adafactor": lambda **kw: opt.Adafactor(1e-3, **kw),
    "Adagrad": lambda **kw: opt.Adagrad(1e-2, **kw),
    "Adam": lambda **kw: opt.Adam(1e-3, **kw),
    "AdamW": lambda **kw: opt.AdamW(1e-3, **({"weight_decay": 0.1} | kw)),
    "Adamax": lambda **kw: opt.Adamax(1e-3, **kw),
    "Ftrl": lambda **kw: opt.Ftrl(1e-2, l1_regularization_strength=1e-3, **kw),
    "Lamb": lambda **kw: opt.Lamb(1e-3, **kw),
    "Lion": lambda **kw: opt.Lion(1e-4, **kw),
    "Muon": lambda **kw: opt.Muon(1e-3, **kw),
    "Nadam": lambda **kw: opt.Nadam(1e-3, **kw),
    "RMSprop": lambda **kw: opt.RMSprop(1e-3, momentum=0.5, centered=True, **kw),
    "ScheduleFreeAdamW": lambda **kw: opt.ScheduleFreeAdamW(1e-3, **kw),
    "SGD": lambda **kw: opt.SGD(0.1, momentum=0.9, nesterov=True, **kw),
}


def classifier(optimizer: Callable[[], Any]) -> Callable[[], Model]:
    def make() -> Model:
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="tanh", kernel_constraint="max_norm"),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, metrics=["accuracy"])
        # If it is built inside the first training step, as in plain Keras, ScheduleFreeAdamW copies the weights into
        # its slots at every step: the copy becomes part of the step's graph.
        model.optimizer.build(model.trainable_variables)
        return model

    return make


def embedding(**kwargs: Any) -> Callable[[], Model]:
    def make() -> Model:
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(9, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(opt.SGD(0.5, momentum=0.5, **kwargs), loss)
        return model

    return make


def tokens() -> Any:
    return (abs(features(NUM_ROWS, 4, seed=4)) * 5).astype("int32") % 9


def with_schedule() -> Any:
    return opt.Adam(opt.schedules.CosineDecay(1e-2, 6, warmup_target=2e-2, warmup_steps=2))


def multi() -> Any:
    return opt.MultiOptimizer(opt.OptimizerMap(opt.Adam(1e-3, clipnorm=0.05), {".*bias": opt.SGD(0.1)}))


def scaled(**kwargs: Any) -> Any:
    return opt.LossScaleOptimizer(opt.Adam(1e-3, **kwargs), initial_scale=2.0**14, dynamic_growth_steps=3)


fit = fit_arrays(vectors(), labels(), predict=False)
longer = fit_arrays(vectors(), labels(), predict=False, epochs=3)
fit_tokens = fit_arrays(tokens(), labels(), predict=False)

CASES = [
    *(Case(name, classifier(make), fit) for name, make in EVERY.items()),
    *(
        Case(
            f"{name}, {argument}",
            classifier(functools.partial(EVERY[name], **{argument: value})),
            fit,
        )
        for name in ("SGD", "Adam", "Lamb")
        for argument, value in (("clipnorm", 0.05), ("global_clipnorm", 0.05), ("clipvalue", 0.01))
    ),
    Case("SGD, weight_decay", classifier(lambda: EVERY["SGD"](weight_decay=0.05)), fit),
    Case("Adam, EMA", classifier(lambda: EVERY["Adam"](use_ema=True, ema_momentum=0.8)), fit),
    Case(
        "Adam, EMA with overwrite",
        classifier(lambda: EVERY["Adam"](use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)),
        longer,
    ),
    Case("Adam, learning-rate schedule", classifier(with_schedule), longer),
    Case(
        "SGD, gradient_accumulation_steps",
        classifier(lambda: EVERY["SGD"](gradient_accumulation_steps=3)),
        longer,
    ),
    Case(
        "Adam, gradient_accumulation_steps, global_clipnorm, EMA with overwrite",
        classifier(
            lambda: EVERY["Adam"](
                gradient_accumulation_steps=2, global_clipnorm=0.05, use_ema=True, ema_overwrite_frequency=2
            )
        ),
        longer,
    ),
    # 12 steps: the gradients of two remain in the accumulators, which are compared as well.
    Case(
        "SGD, gradients left in accumulation", classifier(lambda: EVERY["SGD"](gradient_accumulation_steps=5)), longer
    ),
    Case("MultiOptimizer", classifier(multi), fit),
    Case("LossScaleOptimizer", classifier(scaled), longer),
    Case("LossScaleOptimizer, clipnorm", classifier(lambda: scaled(clipnorm=0.05)), longer),
    Case(
        "LossScaleOptimizer, gradients left in accumulation",
        classifier(lambda: scaled(gradient_accumulation_steps=5)),
        longer,
    ),
    Case("Adam, loss_scale_factor", classifier(lambda: EVERY["Adam"](loss_scale_factor=128.0)), fit),
    Case("Embedding, sparse gradients", embedding(), fit_tokens),
    Case("Embedding, sparse gradients, clipnorm", embedding(clipnorm=0.05), fit_tokens),
    Case(
        "Embedding, sparse gradients, gradient_accumulation_steps",
        embedding(gradient_accumulation_steps=2),
        fit_tokens,
    ),
]
