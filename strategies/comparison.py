"""The result of comparing a model's training on a mesh with that on one device: rows of differences, and their cause.

Plain values: no TensorFlow. Made by ``strategy.check(model, data)``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from strategies.text_table import text_table

#: The kinds of rows: outputs of layers, losses and metrics, gradients, weights, the optimizer's state, other variables.
OUTPUT, LOG, GRADIENT, WEIGHT, SLOT, STATE = KINDS = ("output", "log", "gradient", "weight", "slot", "state")
#: The name of the model's own outputs.
OUTPUTS = "the model's outputs"
_LISTED = 8


@dataclasses.dataclass(frozen=True)
class ComparedValue:
    """A value on the mesh compared with the same value on one device.

    Attributes:
        step: 0 before the first update; n after n updates.
        kind: "output" of a layer, "log" (the loss or a metric), "gradient", "weight", "slot" of the optimizer, or
            "state" (variables that are not trained).
        name: the path of the layer or variable, or the name of the log.
        layer: the layer that computes or owns the value; "" if there is none.
        difference: the largest absolute difference of a number, in units of the value's scale: its largest number for
            gradients, and at least 1 for other kinds.
        limit: the largest difference that rounding explains.

    Example:

        row = strategies.ComparedValue(0, "gradient", "dense/kernel", "dense", difference=0.5, limit=1e-5)
        assert not row.ok
    """

    step: int
    kind: str
    name: str
    layer: str
    difference: float
    limit: float

    @property
    def ok(self) -> bool:
        """True if the values are equal up to rounding."""
        return self.difference <= self.limit


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of ``strategy.check(model, data)``; printed as a table. The same on all ranks.

    Attributes:
        rows: the compared values, in the order in which they are computed.
        findings: layers that ``strategy.check(model)`` finds without data.
        notes: sentences about what was left out of the comparison, such as Dropout.
        called: the names of all layers, in the order in which one device calls them.
        sources_of_loss: the names of what computes the loss: a function, layers that add one, a `train_step`.

    Example:

        strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        comparison = strategy.check(model, (np.ones((8, 3)), np.ones((8, 1))), steps=2)
        assert comparison.ok, comparison
    """

    rows: Sequence[ComparedValue]
    findings: Sequence[Any] = ()
    notes: Sequence[str] = ()
    called: Sequence[str] = ()
    sources_of_loss: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        """True if no row differs by more than rounding explains."""
        return all(row.ok for row in self.rows)

    @property
    def first(self) -> ComparedValue | None:
        """The row that is nearest to the cause of all differences; None if nothing differs.

        That is the first output that differs; if outputs are equal, the loss; if the loss is equal, the gradient of the
        layer that is computed last among those that differ, since gradients are passed from the last layer to the
        first; if gradients are equal, the first metric, and then the first weight, slot or other variable.
        """
        different = [row for row in self.rows if not row.ok]
        if not different:
            return None
        step = min(row.step for row in different)
        different = [row for row in different if row.step == step]
        by_kind = {kind: [row for row in different if row.kind == kind] for kind in KINDS}
        losses = list(filter(_is_loss, different))
        gradients = sorted(by_kind[GRADIENT], key=lambda row: self._position(row.layer), reverse=True)
        return (by_kind[OUTPUT] or losses or gradients or by_kind[LOG] or different)[0]

    def _position(self, layer: str) -> int:
        """Returns the position of a layer in the order of calls; -1 if it is not known."""
        return list(self.called).index(layer) if layer in self.called else -1

    def _equal_outputs(self, compared: str, not_compared: str) -> str:
        """Returns the beginning of a sentence, by whether outputs were compared."""
        if any(row.kind == OUTPUT for row in self.rows):
            return f"All outputs {compared}"
        return f"Outputs were not compared, {not_compared}"

    @property
    def suspects(self) -> tuple[str, ...]:
        """The names of the layers, the loss or the metric in which the differences arise; empty if nothing differs."""
        first = self.first
        if first is None:
            return ()
        if first.kind == GRADIENT:
            return self._until_equal_gradients(first.layer)
        return tuple(self.sources_of_loss) if _is_loss(first) else (first.layer or first.name,)

    def _until_equal_gradients(self, layer: str) -> tuple[str, ...]:
        """Returns a layer and those after it in the order of calls, up to the next with gradients: these are equal."""
        weighted = {row.layer for row in self.rows if row.kind == GRADIENT}
        after = itertools.dropwhile(lambda name: name != layer, self.called)
        return (layer, *itertools.takewhile(lambda name: name not in weighted, itertools.islice(after, 1, None)))

    @property
    def cause(self) -> str:
        """One sentence about the first difference; "" if nothing differs."""
        first = self.first
        if first is None:
            return ""
        by = f"by {first.difference:.1e}, where rounding explains {first.limit:.1e}"
        names = " or ".join(map(repr, self.suspects))
        if first.layer == OUTPUTS:
            return f"The model's outputs differ {by}; outputs of layers were not compared, or are equal."
        if first.kind == OUTPUT:
            return f"{names} is the first layer whose output differs: {by}."
        if first.kind == GRADIENT:
            return (
                f"{self._equal_outputs('and the loss are equal', 'the loss is equal')}, and the gradient of "
                f"{first.name!r} differs {by}. Gradients of later layers are equal, so that the difference arises in "
                f"the gradient of {names}."
            )
        after = "before the first update" if first.step == 0 else f"after step {first.step}"
        if _is_loss(first):
            outputs = self._equal_outputs("are equal, and the loss differs", "the loss differs")
            return f"{outputs if first.step == 0 else 'The loss differs'} {after}: {by}. It is computed by {names}."
        if first.kind == LOG:
            return f"The metric {names} differs {after}: {by}."
        return f"The {_NAMES[first.kind]} {first.name!r} is the first to differ, {after}: {by}."

    def __str__(self) -> str:
        lines = [f"{'equal' if self.ok else 'NOT EQUAL'} to one device. {self.cause}".rstrip()]
        lines += text_table([_HEADING, *self._summary()], left=(1, 4))
        lines += [f"Not compared: {note}" for note in self.notes]
        lines += [f"Finding: {finding}" for finding in self.findings]
        return "\n".join(lines)

    def _summary(self) -> list[tuple[str, ...]]:
        """Returns a line for each step and kind that has equal values, and for the values that differ."""
        lines: list[tuple[str, ...]] = []
        for step, kind in dict.fromkeys((row.step, row.kind) for row in self.rows):
            rows = [row for row in self.rows if (row.step, row.kind) == (step, kind)]
            equal = [row for row in rows if row.ok]
            if equal:
                largest = max(equal, key=lambda row: row.difference)
                lines.append(_line(largest, f"{len(equal)} equal"))
            different = [row for row in rows if not row.ok]
            lines += [_line(row, row.name) for row in different[:_LISTED]]
            if len(different) > _LISTED:
                lines.append((str(step), kind, "", "", f"and {len(different) - _LISTED} more that differ"))
        return lines

    def to_json(self) -> str:
        """Returns the result without its findings as text, for :meth:`from_json`."""
        return json.dumps(
            [[dataclasses.astuple(row) for row in self.rows], self.notes, self.called, self.sources_of_loss]
        )

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Returns the result of another rank, without findings."""
        rows, *others = json.loads(text)
        return cls(tuple(ComparedValue(*row) for row in rows), (), *map(tuple, others))


_HEADING = ("step", "kind", "difference", "limit", "values")
_NAMES = {WEIGHT: "weight", SLOT: "optimizer's slot", STATE: "variable"}


def _is_loss(row: ComparedValue) -> bool:
    return row.kind == LOG and row.name == "loss"


def _line(row: ComparedValue, name: str) -> tuple[str, ...]:
    return (str(row.step), row.kind, f"{row.difference:.1e}", f"{row.limit:.1e}", name)
