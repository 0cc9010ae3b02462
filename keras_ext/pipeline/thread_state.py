"""The state of a pipeline model in the current thread: replicas run in threads of their own and share the model.

The contract is tested in ``tests/keras_ext/pipeline/test_inference.py`` and ``test_losses.py`` beside it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class ThreadState(threading.local):
    """The state of one replica's computation in a `PipelineModel`; each thread has its own.

    Attributes:
        flows: True if calls compute micro-batches that flow through the stages.
        tests: True if, in addition, only the last stage needs the outputs.
        places: True while calls of layers are placed one by one, and none of them runs.
        added: the losses that layers added in the last call, and do not keep themselves.
        losses: the added losses to show while a loss is computed; None otherwise.
        compiled_loss: the compiled loss to show while a loss is computed; None for the model's.
    """

    def __init__(self) -> None:
        self.flows = False
        self.tests = False
        self.places = False
        self.added: list[Any] = []
        self.losses: list[Any] | None = None
        self.compiled_loss: Any = None

    @contextlib.contextmanager
    def flowing(self, tests: bool = False) -> Iterator[None]:
        """Context manager: calls compute micro-batches that flow through the stages."""
        self.flows, self.tests = True, tests
        try:
            yield
        finally:
            self.flows = self.tests = False

    @contextlib.contextmanager
    def showing(self, losses: list[Any], compiled: Any = None) -> Iterator[None]:
        """Context manager: `losses` are the added losses, and `compiled` is the compiled loss."""
        self.losses, self.compiled_loss = losses, compiled
        try:
            yield
        finally:
            self.losses = self.compiled_loss = None
