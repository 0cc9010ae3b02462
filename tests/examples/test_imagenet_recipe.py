"""The classifiers and their training: sizes, schedules, weight decay, and the weight of a skipped image."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from common.options import OptionError
from imagenet import models, recipe


def test_resnet50_is_the_usual_one() -> None:
    model = models.build_model("ResNet50", 224, 1000)
    # The second number counts moving means and variances.
    assert model.count_params() == 25_557_032 + 53_120
    assert model.output_shape == (None, 1000)
    assert model.get_layer("stage4_block2_relu").output.shape == (None, 7, 7, 2048)


@pytest.mark.parametrize("name", ["AlexNet", "MobileNetV2", "EfficientNetB0"])
def test_models_take_raw_pixels_of_small_images(name: str) -> None:
    model = models.build_model(name, 32, 7)
    logits = model(np.zeros((2, 32, 32, 3), np.uint8))
    assert logits.shape == (2, 7)
    assert logits.dtype == "float32"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(OptionError, match=r"--model: expected ResNet50, AlexNet or one of .*'VGG16'.*'Reznet'"):
        models.build_model("Reznet", 32, 7)
    with pytest.raises(OptionError, match="--model=InceptionV3 does not support --image_size=32"):
        models.build_model("InceptionV3", 32, 7)


def _rates(schedule: Any, *steps: int) -> list[float]:
    return [round(float(schedule(step)), 5) for step in steps]


def test_learning_rates() -> None:
    cosine = recipe.learning_rate("sgd", None, 512, decay="cosine", warmup_steps=9, num_steps=109)
    assert _rates(cosine, 0, 4, 9, 59, 109) == [0.02, 0.1, 0.2, 0.1, 0.0]
    steps = recipe.learning_rate("sgd", 0.1, 512, decay="steps", warmup_steps=9, num_steps=90)
    assert _rates(steps, 0, 9, 29, 30, 59, 60, 79, 80) == [0.02, 0.2, 0.2, 0.02, 0.02, 0.002, 0.002, 0.0002]
    no_warmup = recipe.learning_rate("sgd", 0.1, 256, decay="cosine", warmup_steps=0, num_steps=2)
    assert _rates(no_warmup, 0, 1, 2) == [0.1, 0.05, 0.0]
    # A warm-up that is longer than the training takes half of it.
    short = recipe.learning_rate("sgd", 0.1, 256, decay="cosine", warmup_steps=10, num_steps=2)
    assert _rates(short, 0, 1, 2) == [0.05, 0.1, 0.0]
    # Two steps per update, which then has twice the images.
    gathered = recipe.learning_rate("lamb", None, 128, decay="cosine", warmup_steps=0, num_steps=4, accumulation=2)
    assert _rates(gathered, 0, 1, 2, 3, 4) == [0.0006, 0.0006, 0.0003, 0.0003, 0.0]
    restored = type(gathered).from_config(gathered.get_config())
    assert _rates(restored, 2) == [0.0003]
    with pytest.raises(OptionError, match="received 'adagrad'"):
        recipe.learning_rate("adagrad", None, 128, decay="cosine", warmup_steps=0, num_steps=4)


@pytest.mark.parametrize("name", recipe.RATES)
def test_norms_and_biases_do_not_decay(name: str) -> None:
    model = models.build_model("ResNet50", 32, 7)
    optimizer = recipe.make_optimizer(name, 0.1, momentum=0.9, weight_decay=0.5)
    optimizer.build(model.trainable_variables)
    decaying = {v.path for v in model.trainable_variables if optimizer._use_weight_decay(v)}
    kernels = {v.path for v in model.trainable_variables if v.path.endswith("kernel")}
    assert decaying == kernels
    assert len(kernels) == 54
    with pytest.raises(OptionError, match="received 'adagrad'"):
        recipe.make_optimizer("adagrad", 0.1, momentum=0.9, weight_decay=0.5)


def test_a_row_of_weight_zero_counts_for_nothing() -> None:
    random = np.random.default_rng(0)
    logits = random.standard_normal((4, 5)).astype("float32")
    labels, weights = np.array([1, 0, 4, 2], np.int32), np.array([1, 0, 1, 1], np.float32)
    loss = recipe.SmoothedCrossentropy(0.1)
    used = weights > 0
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(
        np.eye(5, dtype="float32")[labels[used]], logits[used]
    )
    np.testing.assert_allclose(loss(labels, logits, sample_weight=weights), expected, rtol=1e-6)
    restored = recipe.SmoothedCrossentropy.from_config(loss.get_config())
    np.testing.assert_array_equal(restored(labels, logits), loss(labels, logits))
    skipped = recipe.SkippedRows()
    skipped.update_state(labels, logits, sample_weight=weights)
    skipped.update_state(labels, logits)
    counted = skipped.result()
    skipped.reset_state()  # As Keras does for the validation, before it reads the logs of the training.
    assert float(counted) == 1
