"""The tested versions are the required ones, and other versions cause a warning."""

import tomllib
import warnings
from pathlib import Path

import pytest

from strategies.versions import TESTED, warn_of_untested

INSIDE = {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.0rc1"}


def test_they_are_the_ranges_that_are_required() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    required = {f"{name}>={low},<{high}" for name, (low, high) in TESTED.items()}
    assert required <= set(project["dependencies"])


def test_what_is_tested_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untested(INSIDE)


@pytest.mark.parametrize(("name", "version"), [("keras", "3.17.0"), ("tensorflow", "2.18.1"), ("numpy", "3.0.0.dev1")])
def test_others_are_named_with_what_is_tested(name: str, version: str) -> None:
    with pytest.warns(UserWarning, match=rf"not tested with {name} {version}:") as caught:
        warn_of_untested(INSIDE | {name: version})
    assert len(caught) == 1
    assert "tensorflow >= 2.19, < 2.23, keras >= 3.12, < 3.17, numpy >= 2.0, < 2.5" in str(caught[0].message)
