from __future__ import annotations

import functools

import pytest

from tests.surface.reader_cells import outcome
from tests.surface.reader_places import IN_PROCESS, Place
from tests.surface.reader_stops import KEEPERS, stopped
from tests.surface.readers import READERS, SAMPLE, without_readers

# Keras warns of every dataset of unknown length, with or without us.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.usefixtures("without_rewriting"),
]

#: Every strategy, and every way to resume; similar cells run with `--parity-all`.
_CELLS = {
    "data=2": ("PyDataset, threads", "tf.data, repeated"),
    "data=3": ("generator", "tf.data, interleaved"),
    "shard=optimizer": ("PyDataset, shuffled",),
    "shard=weights": ("tf.data, mapped after batch",),
    "tensor=2": ("tf.data, of unknown length",),
    "pipe=2": ("numpy, shuffled",),
}
_STOPS = {
    "data=2": (("tf.data, repeated", "Checkpoints(every_steps=2)"), ("PyDataset, threads", "BackupAndRestore")),
    "shard=weights": (("generator", "Checkpoints(every_steps=2)"),),
    "pipe=2": (("generator", "BackupAndRestore(save_freq=2)"),),
}


@functools.cache
def plain() -> Place:
    return Place()


@functools.cache
def place(strategy: str) -> Place:
    return Place.on(IN_PROCESS[strategy])


def test_every_adapter_of_keras_has_a_reader() -> None:
    assert without_readers() == set(), "give each a reader in tests/surface/readers.py"
    assert set(SAMPLE) <= set(READERS)


@pytest.mark.parametrize("strategy", IN_PROCESS)
def test_readers(strategy: str) -> None:
    found = {name: outcome(name, place(strategy), plain()) for name in _CELLS[strategy]}
    stops = {pair: stopped(READERS[pair[0]], pair[1], place(strategy), plain()) for pair in _STOPS.get(strategy, ())}
    assert {each.kind for each in [*found.values(), *stops.values()]} == {"equal"}, (found, stops)


@pytest.mark.parity_all
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("strategy", IN_PROCESS)
def test_all_readers(strategy: str) -> None:
    found = {name: outcome(name, place(strategy), plain()) for name in READERS}
    found |= {
        f"{name}; {keeper}": stopped(reader, keeper, place(strategy), plain())
        for name, reader in READERS.items()
        for keeper in KEEPERS
    }
    wrong = {name: each for name, each in found.items() if not each.is_allowed}
    assert not wrong
