"""One cell of the third grid: a reader and a strategy, in training, evaluation and prediction, against one device.

`reader_stops` tests stops in the middle of an epoch, and resuming.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

import strategies
from tests.surface.cells import Outcome, difference_of, is_ours, words_of
from tests.surface.reader_places import BatchLogs, Place, Values, run_caught
from tests.surface.readers import READERS, Reader

TOLERANCE = 1e-6
EPOCHS = 2


def trained(reader: Reader, place: Place) -> Values:
    """Trains for two epochs, evaluates and predicts; returns all values to compare."""
    model = place.model(reader.inputs)
    keras.utils.set_random_seed(11)
    logs = BatchLogs()
    with place.scope():
        arguments, of_test, of_predict = (reader.make(0) for _ in range(3))
    history = model.fit(**arguments, epochs=EPOCHS, verbose=0, callbacks=[logs]).history
    return {
        "logs of steps": logs.values,
        "history": [history[name] for name in sorted(history)],
        "weights": model.get_weights(),
        "test": [model.evaluate(**_of_test(of_test), verbose=0)],
        "predictions": [model.predict(**_of_predict(of_predict), verbose=0)],
    }


def _of_test(arguments: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in arguments.items() if name not in ("shuffle", "steps_per_epoch")}
    return kept | {"steps": arguments.get("steps_per_epoch")}


def _of_predict(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in _of_test(arguments).items() if name not in ("y", "sample_weight")}


def outcome(name: str, place: Place, plain: Place) -> Outcome:
    """Compares a reader at a place with one device."""
    return compared(READERS[name], place, plain, trained, trained)


def compared(
    reader: Reader,
    place: Place,
    plain: Place,
    run: Callable[[Reader, Place], Values],
    expected: Callable[[Reader, Place], Values],
) -> Outcome:
    """Runs a reader in both places, and compares the results.

    Args:
        reader: the reader.
        place: the place with a strategy.
        plain: the place on one device.
        run: called for `place`.
        expected: called for `plain`, once for each reader.
    """
    if not reader.is_installed:
        return Outcome("not run", words=f"needs {reader.needs}")
    wanted, of_keras = plain.known(reader, expected)
    if isinstance(wanted, Exception):
        return Outcome("absent", words=f"plain Keras: {words_of(wanted)}")
    found, of_ours = run_caught(reader, place, run)
    if isinstance(found, Exception):
        return Outcome("refused" if is_ours(found) else "crash", words=words_of(found))
    parts = {part: difference_of(wanted[part], found[part]) for part in wanted}
    worst = max(parts, key=lambda part: parts[part])
    said = [str(each.message) for each in of_ours if issubclass(each.category, strategies.DifferenceWarning)]
    if said:
        return Outcome("warned", parts[worst], said[0])
    if parts[worst] > TOLERANCE:
        return Outcome("wrong", parts[worst], ", ".join(f"{part} {parts[part]:.1e}" for part in parts))
    new = _messages(of_ours) - _messages(of_keras)
    if new:
        # A user notices a warning that Keras does not give on one device.
        return Outcome("wrong", parts[worst], f"warns, unlike one device: {sorted(new)[0]}")
    return Outcome("equal", parts[worst])


def _messages(caught: Sequence[warnings.WarningMessage]) -> set[str]:
    """Returns the warnings except NumPy's own, which occurs for every file that Keras writes."""
    return {str(each.message) for each in caught if not issubclass(each.category, DeprecationWarning)}
