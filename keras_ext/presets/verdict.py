"""The error that names everything that is wrong with the files of a preset, on all processes."""

from __future__ import annotations

from typing import Any

from strategies import layer_api


def lines_of(found: layer_api.Differences) -> list[str]:
    """Returns a line for each tensor that differs."""
    lines = [f"missing: {name}, shape {shape}" for name, shape in found.missing.items()]
    lines += [f"extra: {name}, shape {shape}" for name, shape in found.extra.items()]
    lines += [
        f"misshapen: {name}, shape {expected}, in the file {shape}"
        for name, (expected, shape) in found.misshapen.items()
    ]
    return lines


def described(found: layer_api.Differences) -> str:
    """Returns :func:`lines_of` as a text, in alphabetical order; "" if no tensor differs."""
    return "\n".join(sorted(lines_of(found)))


def agree(preset: Any, text: str, error: Exception | None = None, *, is_known: bool = False) -> None:
    """Raises an error on all processes if one of them has one; else it returns. All processes call it.

    Args:
        preset: the preset.
        text: what this process found wrong; "" if nothing.
        error: the error that this process caught, if any.
        is_known: True if `error` says it all, such as that of a wrong argument: then this process raises it.

    Raises:
        ValueError: a process found something wrong.
    """
    texts = layer_api.texts_of_ranks(text)
    if not any(texts):
        return
    if error is not None and is_known:
        raise error
    ranks: dict[str, list[int]] = {}
    for rank, each in enumerate(texts):
        if each:
            ranks.setdefault(each, []).append(rank)
    found = [
        each if len(own) == len(texts) else f"On rank {', '.join(map(str, own))}:\n{each}"
        for each, own in ranks.items()
    ]
    raise ValueError(
        f"The files of the preset {str(preset)!r} do not fit the model. Get the preset again, or pass the arguments "
        "with which it was saved. Received:\n" + "\n".join(found)
    ) from error
