"""Ends the wait for processes that do not come.

TensorFlow's collective ops take a timeout, but pay for it with a thread that sleeps until then, two for each op that
runs: with 10 minutes and 50 steps a second they reach the limits of a system within minutes (TensorFlow 2.21,
`Env::SchedClosureAfter`). Horovod's ops take none, and its stall check did not end a wait (0.28.1, Gloo). So each op of
ours counts when it starts to wait and when it is done, and one thread looks at the counts: when some op waits and none
has been done for the time allowed, all are ended.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable

import tensorflow as tf

from strategies.collectives.handles import capturable, make_handle, run_beside_others

_SECONDS_BETWEEN_LOOKS = 1.0
_instances = itertools.count()


class Watch:
    """Counts the collectives that wait in this process, and ends them when nothing moves any more.

    Args:
        who: names this process in the error, as in "rank 0 of 2".
        timeout_seconds: how long a collective may wait while no other is done; 0 for ever, and nothing is counted.
        end: ends all collectives of this process; takes what to say.
        setting: what the user sets to allow more time.

    Raises:
        ValueError: a negative timeout.
    """

    def __init__(self, who: str, timeout_seconds: float, end: Callable[[str], None], setting: str) -> None:
        if timeout_seconds < 0:
            raise ValueError(f"timeout_seconds must be 0 (never) or more. Received: timeout_seconds={timeout_seconds}.")
        self._who, self._timeout_seconds = who, timeout_seconds
        self._end, self._setting = end, setting
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        number = next(_instances)
        with tf.init_scope():
            self._started, self._done = (
                make_handle(f"strategies_{kind}_{number}", tf.int64) for kind in ("started", "done")
            )
            for handle in (self._started, self._done):
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(0, tf.int64))

    def start(self, owner: object) -> None:
        """Looks as long as `owner` lives, at most until the interpreter ends: a thread in TensorFlow takes it down."""
        if not self._timeout_seconds:
            return
        weakref.finalize(owner, self.stop)
        self._thread = threading.Thread(target=self._look, name="strategies-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_BETWEEN_LOOKS)

    def waits(self, value: tf.Tensor) -> tf.Tensor:
        """The input of a collective, which waits as soon as it is there."""
        return _counted(value, self._started) if self._timeout_seconds else value

    def is_done(self, result: tf.Tensor) -> tf.Tensor:
        """The result of a collective, which waits no more."""
        return _counted(result, self._done) if self._timeout_seconds else result

    def _look(self) -> None:
        seen, since = None, time.monotonic()
        while not self._stop.wait(min(_SECONDS_BETWEEN_LOOKS, self._timeout_seconds / 5)):
            # Done first: an op in between counts as waiting, never as done before it has started.
            done, started = _read(self._done), _read(self._started)
            now = time.monotonic()
            if started == done or (started, done) != seen:
                seen, since = (started, done), now
            elif now - since >= self._timeout_seconds:
                self._end(
                    f"{self._who} has waited {self._timeout_seconds:g} s for the others in a collective. At least "
                    "one of them has failed, hangs, is that much slower or runs another program: its own output tells. "
                    f"If it was only slow, allow more with {self._setting}, 0 for no limit."
                )
                return


def _counted(value: tf.Tensor, handle: tf.Tensor) -> tf.Tensor:
    # Captured first: what is captured depends on nothing in the function.
    resource = capturable(handle)
    with tf.device("CPU:0"), tf.control_dependencies([value]):
        count = tf.raw_ops.AssignAddVariableOp(resource=resource, value=tf.constant(1, tf.int64))
    # As the collectives themselves.
    run_beside_others(count)
    with tf.control_dependencies([count]):
        return tf.identity(value)


def _read(handle: tf.Tensor) -> int:
    with tf.device("CPU:0"):
        return int(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64))
