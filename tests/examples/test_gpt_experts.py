"""The language model with mixtures of experts: meshes with the axis "expert", the load in the logs, files, refusals."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common.options import OptionError
from gpt import train
from gpt.options import Options, check
from gpt.text import Text

import keras_ext
from tests.examples.test_gpt_train import NUM_STEPS, SMALL, TEXT, trained

EXPERTS = replace(SMALL, num_experts=4, epochs=1)
LOAD = "block_0_ffn_load"


@pytest.fixture(scope="module")
def alone() -> tuple[Any, list[float], Any]:
    """The model, losses and history of one device."""
    return trained({"data": 1}, EXPERTS)


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(
    "axes",
    [
        {"expert": 2},
        pytest.param({"data": 2}, marks=pytest.mark.parity_all),
        pytest.param({"data": 2, "expert": 2}, marks=pytest.mark.parity_all),
    ],
    ids=lambda axes: ",".join(f"{k}={v}" for k, v in axes.items()),
)
def test_every_mesh_gives_the_loss_curve_and_the_load_of_one_device(axes: Mapping[str, int], alone: Any) -> None:
    _, losses, history = alone
    _, same, same_history = trained(axes, EXPERTS)
    assert len(losses) == NUM_STEPS
    assert losses[-1] < losses[0] / 1.3
    np.testing.assert_allclose(same, losses, rtol=0, atol=1e-5)
    assert sorted(history) == sorted(same_history) == [LOAD, "loss", "perplexity"]
    assert 1 < history[LOAD][0] < 2
    assert same_history[LOAD] == history[LOAD]
