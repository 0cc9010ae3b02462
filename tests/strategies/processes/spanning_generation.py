"""Tasks of KerasHub that generate over several processes: run by `test_suites` in both at once, never collected.

What is compared with one device is the same on all ranks: a failing test fails on all, and none waits.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.hub import backbones
from tests.strategies.processes.mesh_strategies import new_strategy, on

keras_hub = pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

TOKENS = 8
IDS = np.random.default_rng(0).integers(1, 48, (6, TOKENS))
ROWS = {"token_ids": IDS, "padding_mask": np.ones(IDS.shape, "int32")}
# Prompts of three lengths; the rows do not divide by the number of micro-batches, nor by that of ranks.
LENGTHS = np.array([2, 4, 2, 3, 2])
PROMPTS = {"token_ids": IDS[:5], "padding_mask": (np.arange(TOKENS) < LENGTHS[:, None]).astype("int32")}

SAMPLERS = {
    "greedy": lambda: keras_hub.samplers.GreedySampler(),
    "top_k": lambda: keras_hub.samplers.TopKSampler(k=4, seed=3, temperature=2.0),
    "contrastive": lambda: keras_hub.samplers.ContrastiveSampler(k=3, alpha=0.3),
}


@functools.cache
def rank_group() -> Any:
    return on({"pipe": 2}).extended.engine.process_group


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    rank_group()


def task(name: str) -> Any:
    backbone = backbones.build(f"{name}Backbone")
    model = getattr(keras_hub.models, f"{name}CausalLM")(backbone, preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-3), loss=loss, sampler="greedy")
    return model


def spread(name: str, axes: dict[str, int]) -> Any:
    with (on(axes) if axes else new_strategy(None, shard="weights")).scope():
        model = task(name)
        if "tensor" in axes:
            model = keras_ext.parallelize(model)
        if "pipe" in axes:
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
    return model


def fitted(model: Any) -> list[Any]:
    history = model.fit(ROWS, np.roll(IDS, -1, 1), batch_size=6, epochs=3, shuffle=False, verbose=0).history
    return [*history.values(), *model.get_weights()]


def with_sampler(model: Any, name: str) -> Any:
    """Compiles a model with another sampler, and the same optimizer and loss."""
    model.sampler = SAMPLERS[name]()
    model.generate_function = None
    return model


def generated(model: Any, stop_token_ids: Any = (7, 9)) -> list[Any]:
    made = model.generate({**PROMPTS}, stop_token_ids=stop_token_ids)
    return [made["token_ids"], np.asarray(made["padding_mask"], "int32")]


def same_on_all(value: Any) -> bool:
    each = rank_group().gather(keras.ops.convert_to_tensor(np.asarray(value)[None], "float64")).numpy()
    return bool((each == each[:1]).all())


@functools.cache
def plain(name: str) -> Any:
    model = task(name)
    return model, fitted(model)


@pytest.mark.parametrize(
    ("name", "axes", "samplers"),
    [
        ("GPT2", {"pipe": 2}, ("top_k", "contrastive")),
        # Operations between layers, and a table that both processes have.
        pytest.param("Gemma", {"pipe": 2}, ("greedy",), marks=pytest.mark.parity_all),
        ("Llama", {"tensor": 2}, ("greedy",)),
        # Its adapters are tuned with sharded weights, and generate, in one process.
        pytest.param("Llama", {}, ("greedy",), marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_it_trains_and_generates_as_on_one_device(name: str, axes: dict[str, int], samplers: tuple[str, ...]) -> None:
    one, results = plain(name)
    model = spread(name, axes)
    for mine, its in zip(results, fitted(model), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-6)
    for sampler in samplers:
        expected, found = generated(with_sampler(one, sampler)), generated(with_sampler(model, sampler))
        for mine, its in zip(expected, found, strict=True):
            np.testing.assert_array_equal(mine, its, err_msg=sampler)
    if hasattr(model, "score"):
        np.testing.assert_allclose(one.score(IDS), model.score(IDS), rtol=0, atol=1e-5)


def test_a_sampler_without_a_seed_draws_the_same_on_all_ranks() -> None:
    model = spread("GPT2", {"pipe": 2})
    model.sampler = keras_hub.samplers.RandomSampler(temperature=5.0)
    model.sampler.seed_generator.state.assign([rank_group().rank + 1, 7])
    model.generate_function = None
    tokens = generated(model)[0]
    assert same_on_all(tokens)
    again = generated(model)[0]
    assert same_on_all(again)
    assert (again != tokens).any()


@pytest.mark.parametrize("axes", [{"pipe": 2}, {}], ids=str)
def test_different_prompts_are_refused_on_all_ranks(axes: dict[str, int]) -> None:
    model = spread("GPT2", axes)
    own = {key: value[: 4 + rank_group().rank] for key, value in PROMPTS.items()}
    with pytest.raises(ValueError, match=r"same prompts.*\[4, 8\].*\[5, 8\]"):
        model.generate(own, stop_token_ids=None)
    with pytest.raises(ValueError, match=r"stop_token_ids=\(1,\).*stop_token_ids=\(2,\)"):
        model.generate({**PROMPTS}, stop_token_ids=(rank_group().rank + 1,))


def test_a_layer_that_both_processes_call_alike_is_refused() -> None:
    tokens = keras.Input((TOKENS,), dtype="int32")
    shared = keras.layers.Dense(4, name="shared")
    x = keras.layers.Embedding(48, 4)(tokens)
    x = shared(keras.layers.Dense(4, name="middle")(shared(x)))

    class Scored(keras.Model):
        def score(self, ids: Any) -> Any:
            return self.get_layer("shared")(keras.ops.ones((2, 4)))

    with on({"pipe": 2}).scope():
        model = keras_ext.PipelineModel(Scored(tokens, x), partition=["middle"])
    with pytest.raises(ValueError, match=r"'shared' is called in stages of several processes.*\[0, 1\]"):
        model.score(IDS)


def test_generation_step_by_step_is_refused() -> None:
    model = spread("GPT2", {"pipe": 2})
    model.run_eagerly = True
    with pytest.raises(ValueError, match="run_eagerly=False"):
        generated(model)
