"""One of two ranks that stays out of a step while its process lives: run by `test_absent`, never collected."""

from __future__ import annotations

import sys
import time

import keras
import numpy as np

import strategies
from strategies.control_plane import keys

#: Longer than a busy machine starts one process after the other.
TIMEOUT_SECONDS = 15.0


def main(name: str) -> None:
    strategy = getattr(strategies, name)(timeout_seconds=TIMEOUT_SECONDS)
    member, rank = strategy.extended.engine.member, strategy.extended.engine.process_group.rank
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((16, 4), "float32")
    model.fit(x, x[:, :1], verbose=0)
    if rank == 1:
        while not member.store.read(keys.VERDICT) and not member.store.left():
            time.sleep(0.05)
    start = time.monotonic()
    try:
        model.fit(x, x[:, :1], verbose=0)
    except strategies.DistributedError as error:
        # One write: the other rank writes to the same terminal.
        sys.stdout.write(f"rank {rank} failed after {time.monotonic() - start:.0f} s: {error}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
