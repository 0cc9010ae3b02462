"""The reference has each public name once, and nothing that does not exist."""

from __future__ import annotations

import importlib
import re
from collections import Counter

import keras_ext
import strategies
from strategies.testing import faults
from tests.docs.pages import pages, text_of

SHOWN = [
    name
    for page in pages()
    if page.startswith("docs/reference/")
    for name in re.findall(r"^::: (\S+)$", text_of(page), flags=re.MULTILINE)
]
#: Types of arguments and a name of a variable, which the functions that take them describe.
_DESCRIBED_ELSEWHERE = {f"{faults.__name__}.{name}" for name in ("Kind", "Moment", "VARIABLE")}


def test_every_public_name_is_shown_once() -> None:
    public = {f"{module.__name__}.{name}" for module in (keras_ext, strategies, faults) for name in module.__all__}
    public = public - _DESCRIBED_ELSEWHERE - {"strategies.elastic"} | {"strategies.elastic.run"}
    assert not public - set(SHOWN)
    assert [name for name, count in Counter(SHOWN).items() if count > 1] == []


def test_every_name_exists_and_is_exported() -> None:
    for name in SHOWN:
        module, _, attribute = name.rpartition(".")
        found = importlib.import_module(module)
        assert getattr(found, attribute, None) is not None, name
        assert attribute in getattr(found, "__all__", [attribute]), name
