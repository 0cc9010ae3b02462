"""Parts of Keras that only newer releases have: the one module by which tests skip something for that reason."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import pytest

from strategies.versions import is_at_least

#: Optimizers, layers and their arguments in tests' models, and the first release that has them.
SINCE = {
    "MultiOptimizer": "3.15",
    "OrbaxCheckpoint": "3.13",
    "ScheduleFreeAdamW": "3.14",
    "SparseCategoricalFocalCrossentropy": "3.16",
    "TernaryDense": "3.16",
    **dict.fromkeys((f"Adaptive{kind}Pooling{n}D" for kind in ("Average", "Max") for n in (1, 2, 3)), "3.13"),
    "ContrastLimitedAdaptiveHistogramEqualization": "3.14",
    "export-litert": "3.13",
    "renorm": "3.14",
    "sliding_window": "3.15",
    "use_gate": "3.14",
}

#: Tests of models with several outputs, each with a loss. The nightly builds of Keras 3.16 print wrong losses of single
#: outputs where the last batch is smaller: docs/numbers/upstream.md. Strict: these tests fail when Keras has mended it.
WRONG_IN_KERAS_316 = ("dict of inputs and outputs", "several outputs, add_loss", "scalar", "per row")


def is_there(part: str) -> bool:
    """Returns True unless the installed Keras is older than the part; parts not in `SINCE` always exist."""
    return has_keras(SINCE.get(part, "3.0"))


def marks_of(*parts: str) -> list[pytest.MarkDecorator]:
    """Returns marks for a test that uses these parts: a skip where one does not exist, a defect where one is wrong."""
    skips = [needs_keras(SINCE[part], part) for part in parts if part in SINCE]
    return [*skips, *(wrong_losses_of_outputs() for part in parts if part in WRONG_IN_KERAS_316)]


def wrong_losses_of_outputs() -> pytest.MarkDecorator:
    """Returns the mark of a test in which plain Keras 3.16 is wrong (`WRONG_IN_KERAS_316`)."""
    return pytest.mark.xfail(
        has_keras("3.16"),
        reason="losses of single outputs are wrong in Keras 3.16",
        raises=AssertionError,
        strict=True,
    )


def ignore_warning_of_numpy() -> None:
    """Ignores, inside `warnings.catch_warnings`, that variables of Keras 3.12 copy themselves against NumPy's wish."""
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning)


def known(**arguments: Any) -> dict[str, Any]:
    """Returns the arguments that the installed Keras supports, for tests that do not depend on them."""
    return {name: value for name, value in arguments.items() if is_there(name)}


def needs_keras(release: str, what: str) -> pytest.MarkDecorator:
    """Returns the mark that skips a test, with the reason, where Keras is older than `release`.

    Args:
        release: the first release that works, such as "3.14".
        what: the feature that the test needs.
    """
    reason = f"{what} is in Keras {release} and later, this is {keras.__version__}"
    return pytest.mark.skipif(not has_keras(release), reason=reason)


def has_keras(release: str) -> bool:
    """Returns True if the installed Keras is that release, such as "3.14", or a later one."""
    return is_at_least(keras.__version__, release)
