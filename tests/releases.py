"""Parts of Keras that only newer releases have: the one place where a test leaves something out for that reason."""

from __future__ import annotations

import re
from typing import Any

import keras
import pytest

#: Optimizers, layers and arguments of layers that tests train with, and the first release that has them.
SINCE = {
    "MultiOptimizer": "3.15",
    "ScheduleFreeAdamW": "3.14",
    **dict.fromkeys((f"Adaptive{kind}Pooling{n}D" for kind in ("Average", "Max") for n in (1, 2, 3)), "3.13"),
    "ContrastLimitedAdaptiveHistogramEqualization": "3.14",
    "renorm": "3.14",
    "sliding_window": "3.15",
    "use_gate": "3.14",
}


def is_there(part: str) -> bool:
    """True unless the installed Keras is older than the part; parts that are not in `SINCE` are always there."""
    return has_keras(SINCE.get(part, "3.0"))


def marks_of(*parts: str) -> list[pytest.MarkDecorator]:
    """The marks of a test of those parts: for each that is in `SINCE` one that skips it where the part is not there."""
    return [needs_keras(SINCE[part], part) for part in parts if part in SINCE]


def known(**arguments: Any) -> dict[str, Any]:
    """The arguments that the installed Keras knows, for tests of something else than what these do."""
    return {name: value for name, value in arguments.items() if is_there(name)}


def needs_keras(release: str, what: str) -> pytest.MarkDecorator:
    """The mark that leaves a test out, with the reason, where Keras is older than `release`.

    Args:
        release: the first one that has it, as "3.14".
        what: what the test needs of it.
    """
    reason = f"{what} is in Keras {release} and later, this is {keras.__version__}"
    return pytest.mark.skipif(not has_keras(release), reason=reason)


def has_keras(release: str) -> bool:
    """True if the installed Keras is that release, as "3.14", or a later one."""
    return _numbers(keras.__version__) >= _numbers(release)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
