"""The log records of this project alone: TensorFlow's hint about retracing depends on earlier tests."""

from __future__ import annotations

import logging

import pytest

_PACKAGES = ("strategies", "keras_ext", "examples")


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Returns the records of this project's loggers."""
    return [record for record in caplog.records if record.name.partition(".")[0] in _PACKAGES]
