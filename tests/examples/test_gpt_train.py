"""The language model on meshes: the loss curve of one device, the sample of the plain model, and other options."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common.options import OptionError
from common.placing import place
from gpt import rows, train
from gpt.model import build_model
from gpt.options import Options, check
from gpt.perplexity import Perplexity
from gpt.sampling import sample
from gpt.text import Text
from gpt.tokens import ByteTokenizer

import keras_ext
from tests.keras_ext.tensor.harness import mesh_strategy

NUM_STEPS = 12
SMALL = Options(
    sequence_length=12,
    batch_size=6,
    units=16,
    num_layers=1,
    num_heads=2,
    learning_rate=0.015,
    warmup_steps=4,
    steps_per_epoch=NUM_STEPS,
    epochs=2,
    microbatches=2,
    partition="uniform",
    sample_length=24,
    verbose=0,
)
TOKENIZER = ByteTokenizer()
SIZES = train.sizes_of(SMALL, TOKENIZER.num_tokens)
TEXT = b"Peter Piper picked a peck of pickled peppers. A peck of pickled peppers Peter Piper picked. " * 4


class Steps(keras.callbacks.Callback):
    """Records the loss of each step, derived from the means since the epoch began."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self._mean = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        mean = logs["loss"]
        self.losses.append(mean * (batch + 1) - self._mean * batch)
        self._mean = mean


def made(axes: Mapping[str, int], options: Options) -> Any:
    strategy = mesh_strategy(axes)
    with strategy.scope():
        sizes = train.sizes_of(options, TOKENIZER.num_tokens)
        model = place(lambda: build_model(sizes), strategy, options)
        model = train.compiled(model, options)
        if options.num_experts:
            keras_ext.track_expert_load(model)
        model.optimizer.build(model.trainable_variables)
    return model


def trained(axes: Mapping[str, int], options: Options = SMALL, **other: Any) -> tuple[Any, list[float], Any]:
    """Returns the model after its epochs, the loss of each step, and the logs of the epochs."""
    options = replace(options, **other)
    training, _ = rows.split(rows.pack([TOKENIZER.encode(TEXT)], TOKENIZER.separator), options.sequence_length)
    keras.utils.set_random_seed(options.seed)
    steps = Steps()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(options.dtype_policy)
    try:
        model = made(axes, options)
        data = rows.batches(training, options.batch_size, seed=1, num_steps=NUM_STEPS * options.epochs)
        history = model.fit(
            data, steps_per_epoch=NUM_STEPS, epochs=options.epochs, shuffle=False, verbose=0, callbacks=[steps]
        )
    finally:
        keras.config.set_dtype_policy(before)
    return model, steps.losses, history.history


@pytest.fixture(scope="module")
def alone() -> tuple[Any, list[float], Any]:
    """Returns model, losses and history of one device."""
    return trained({"data": 1})


MESHES = [
    {"data": 2},
    {"pipe": 2},
    {"tensor": 2},
    {"data": 2, "tensor": 2},
    {"pipe": 2, "tensor": 2},
    {"data": 2, "pipe": 2, "tensor": 2},
]
#: A pipeline alone, and all axes together.
FEW = ({"pipe": 2}, {"data": 2, "pipe": 2, "tensor": 2})


# For these graphs, which run only a few steps, TensorFlow's rewriting would take most of the time.
@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(
    "axes",
    [pytest.param(axes, marks=[] if axes in FEW else pytest.mark.parity_all) for axes in MESHES],
    ids=lambda axes: ",".join(f"{k}={v}" for k, v in axes.items()),
)
def test_every_mesh_gives_the_loss_curve_of_one_device(axes: Mapping[str, int], alone: Any) -> None:
    one, losses, history = alone
    several, same_losses, same_history = trained(axes)
    assert len(losses) == NUM_STEPS * SMALL.epochs
    assert losses[-1] < losses[0] / 2
    np.testing.assert_allclose(same_losses, losses, rtol=0, atol=1e-5)
    assert list(history) == list(same_history) == ["loss", "perplexity"]
    np.testing.assert_allclose(history["perplexity"], np.exp(history["loss"]), rtol=1e-5)
    np.testing.assert_allclose(same_history["perplexity"], history["perplexity"], rtol=1e-5)
    # With these weights, the plain model draws the same sample as that of one device.
    drawn = train.sample_text(several, SIZES, TOKENIZER, SMALL)
    assert drawn == train.sample_text(one, SIZES, TOKENIZER, SMALL)


@pytest.mark.usefixtures("without_rewriting")
def test_a_run_has_its_result(tmp_path: Path) -> None:
    change: dict[str, Any] = {
        "run_dir": str(tmp_path / "run"),
        "steps_per_epoch": 3,
        "tokenizer": "bpe",
        "vocab_size": 280,
    }
    result = train.run(replace(SMALL, mesh="pipe=2", prompt="Peter", temperature=0.0, **change), Text((TEXT,), "test"))
    assert result.is_chief
    assert result.perplexity == pytest.approx(np.exp(result.outcome.history["loss"][-1]), rel=1e-5)
    assert result.sample is not None
    assert result.sample.startswith("Peter")
    head, _, line = str(result).rpartition("\n")
    assert head == f"sample:\n{result.sample}\n"
    word, *pairs = line.split(" ")
    assert word == "result"
    values = {key: float(value) for key, value in (pair.split("=") for pair in pairs)}
    assert values["perplexity"] == pytest.approx(result.perplexity, abs=1e-4)
    assert values["val_perplexity"] == pytest.approx(result.val_perplexity, abs=1e-4)
    assert (values["devices"], values["epochs"]) == (2, 2)
    assert values["bytes_per_token"] == pytest.approx(result.bytes_per_token, abs=1e-3)
    # The same command resumes in the same folder, has nothing left to do, and draws the same.
    again = train.run(replace(SMALL, mesh="tensor=2", prompt="Peter", temperature=0.0, **change), Text((TEXT,), "test"))
    assert again.sample == result.sample
    assert again.outcome.history == result.outcome.history


def test_sampling_slides_its_window(alone: Any) -> None:
    model, _, _ = alone
    plain = build_model(SIZES)
    plain.set_weights(model.get_weights())
    length = SMALL.sequence_length
    # Token by token, by definition; longer than the model's context, also from a longer prompt.
    for prompt in ([TOKENIZER.separator], list(b"Peter Piper picked a ")):
        known = list(prompt)
        for _ in range(length + 4):
            seen = known[-length:]
            window = np.zeros((1, length), np.int32)
            window[0, : len(seen)] = seen
            logits = np.asarray(plain(window))[0, len(seen) - 1, : TOKENIZER.num_tokens]
            known.append(int(logits.argmax()))
        drawn = sample(plain, prompt, length + 4, choices=TOKENIZER.num_tokens, temperature=0.0)
        assert drawn == known[len(prompt) :]


def test_sampling_by_temperature_and_seed() -> None:
    # The model is untrained, so that all tokens are about equally likely; padding tokens never occur.
    plain = build_model(replace(SIZES, num_tokens=3))
    kernel, _ = plain.get_layer("logits").get_weights()
    plain.get_layer("logits").set_weights([0 * kernel, np.array([0.0, 0, 0.5, 9, 9, 9, 9, 9])])

    def drawn(temperature: float, seed: int = 0) -> list[int]:
        return sample(plain, [0], 200, choices=3, temperature=temperature, seed=seed)

    assert drawn(1.0) == drawn(1.0)
    assert drawn(1.0) != drawn(1.0, seed=1)
    counts = np.bincount(drawn(1.0), minlength=3)
    assert (counts > 30).all()
    assert len(counts) == 3
    assert set(drawn(0.0)) == {2} == set(drawn(0.01))


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(
    ("axes", "change"),
    [
        ({"data": 2}, {"remat": "all"}),
        ({"pipe": 2}, {"schedule": "interleaved_1f1b", "partition": "time", "remat": "all"}),
    ],
    ids=str,
)
def test_what_changes_no_numbers(axes: Mapping[str, int], change: dict[str, Any], alone: Any) -> None:
    _, losses, _ = alone
    _, same, _ = trained(axes, **change)
    np.testing.assert_allclose(same, losses, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("without_rewriting")
def test_accumulated_batches_make_one_larger_batch(alone: Any) -> None:
    model, losses, _ = alone
    # Twice the steps, each with half the rows, and the same number of updates.
    half = replace(SMALL, batch_size=3, epochs=4, accumulation=2)
    accumulated, halves, _ = trained({"data": 2}, half)
    np.testing.assert_allclose(np.mean(np.reshape(halves, (-1, 2)), axis=1), losses, rtol=0, atol=1e-5)
    for weight, same in zip(model.get_weights(), accumulated.get_weights(), strict=True):
        np.testing.assert_allclose(same, weight, rtol=0, atol=1e-3)


@pytest.mark.usefixtures("without_rewriting")
def test_half_precision_and_dropout_learn(alone: Any) -> None:
    _, losses, _ = alone
    model, half, _ = trained({"pipe": 2}, dtype_policy="mixed_bfloat16", dropout=0.1)
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    assert model.get_layer("block_0_ffn_up").compute_dtype == "bfloat16"
    assert losses != half
    assert half[-1] < half[0] / 1.5
    # The sample is drawn in float32, whatever the training dtype: the policy has been reset.
    assert len(train.sample_text(model, SIZES, TOKENIZER, SMALL)) > 0


def test_weight_decay_spares_biases_norms_and_tables() -> None:
    model = made({"pipe": 2, "tensor": 2}, SMALL)
    decayed = {
        variable.path.rpartition("/")[2].rpartition("_")[0] or variable.name
        for variable in model.trainable_variables
        if model.optimizer._use_weight_decay(variable)
    }
    assert decayed == {"kernel"}


def test_refuses_stages_where_there_are_none() -> None:
    with pytest.raises(OptionError, match=r"^--remat=all_but_last: without pipeline stages"):
        made({"data": 2}, replace(SMALL, remat="all_but_last"))


def test_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(OptionError, match=r"--units=16 .* --num_heads=3"):
        check(replace(SMALL, num_heads=3))


def test_perplexity_is_of_all_tokens_whatever_the_batches() -> None:
    draw = np.random.default_rng(0)
    targets, logits = draw.integers(0, 5, (7, 3)), draw.standard_normal((7, 3, 5)).astype("float32")
    whole, pieces = Perplexity(), Perplexity()
    whole.update_state(targets, logits)
    for start, stop in ((0, 4), (4, 7)):
        pieces.update_state(targets[start:stop], logits[start:stop])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.exp(-np.log(np.take_along_axis(p, targets[..., None], -1)).mean())
    assert float(whole.result()) == pytest.approx(expected, rel=1e-6)
    assert float(pieces.result()) == pytest.approx(expected, rel=1e-6)
    weights = np.array([1, 0, 0, 1, 0, 0, 0], "float32")
    weighed, chosen = Perplexity(), Perplexity()
    weighed.update_state(targets, logits, weights)
    chosen.update_state(targets[[0, 3]], logits[[0, 3]])
    assert float(weighed.result()) == pytest.approx(float(chosen.result()), rel=1e-6)
