"""Dataclasses as JSON values and back, with their types checked: what processes send to each other."""

import enum
import functools
import types
import typing
from dataclasses import asdict, fields
from typing import Any, Self


class Message:
    """A frozen dataclass whose fields are numbers, strings, enumerations, messages, and tuples of these, or None."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, received: Any) -> Self:
        """Returns the message in a received JSON value.

        Raises:
            ValueError: it is not such a message.
        """
        if not isinstance(received, dict):
            raise ValueError(f"Not a {cls.__name__}. Received: {received!r}")
        hints = _hints(cls)  # type: ignore[arg-type]
        if hints.keys() != received.keys():
            raise ValueError(f"Not a {cls.__name__}. Received: {received!r}")
        message = cls(**{name: _read(hint, received[name]) for name, hint in hints.items()})
        message.check()
        return message

    def check(self) -> None:
        """Raises ValueError if the fields do not fit together."""


@functools.cache
def _hints(kind: type[Message]) -> dict[str, Any]:
    """Returns the types of the fields of a class, by name; to find them takes longer than to read a message."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}  # type: ignore[arg-type]


def _read(expected: Any, value: Any) -> Any:
    """Returns the value of a field of type `expected`."""
    if isinstance(expected, types.UnionType):
        kind, nothing = typing.get_args(expected)
        return None if value is None and nothing is types.NoneType else _read(kind, value)
    if typing.get_origin(expected) is tuple and isinstance(value, list):
        return tuple(_read(typing.get_args(expected)[0], item) for item in value)
    if isinstance(expected, type):
        if issubclass(expected, Message):
            return expected.from_json(value)
        if issubclass(expected, enum.StrEnum) and isinstance(value, str):
            return expected(value)
        if type(value) is expected or (expected is float and type(value) is int):
            return value
    raise ValueError(f"Not a {expected}. Received: {value!r}")
