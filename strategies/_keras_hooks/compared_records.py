"""Records of a training that is compared: the values of a step, and the state from which it begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Entry:
    """A value that is compared.

    Attributes:
        kind: the kind of its row.
        name: the name of its row.
        layer: the layer that has it; "" if none.
        key: the name in a file of a variable, which is unique, unlike its path; "" for other values.
    """

    kind: str
    name: str
    layer: str = ""
    key: str = ""


@dataclasses.dataclass(frozen=True)
class Stage:
    """The outputs and logs of a training up to a step, and which variables can be read then.

    Attributes:
        step: the number of updates so far.
        values: outputs and logs by kind and name.
        has_gradients: True if the optimizers' slots are gradients now.
        has_state: True if the model's variables are what the steps have made of them.
    """

    step: int
    values: Mapping[tuple[str, str], Any]
    has_gradients: bool = False
    has_state: bool = False


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The values that a model computed up to a step, on the process that read them.

    Attributes:
        step: the number of updates so far.
        values: outputs, logs, and gradients or the model's state.
    """

    step: int
    values: Mapping[Entry, np.ndarray]


@dataclasses.dataclass(frozen=True)
class State:
    """The values of a model's variables, on the process that read them.

    Attributes:
        named: arrays by their names in a file of weights.
        seeds: the states of layers' seed generators by the layer's name and number: files do not have them.
    """

    named: Mapping[str, np.ndarray]
    seeds: Mapping[str, Sequence[np.ndarray]]
