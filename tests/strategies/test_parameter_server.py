"""ParameterServerStrategy is refused by name, with the reason and what to use."""

from __future__ import annotations

import pytest

import strategies


@pytest.mark.parametrize("arguments", [{}, {"cluster_resolver": None, "variable_partitioner": None}])
def test_is_refused_with_the_reason_and_what_to_use(arguments: dict[str, None]) -> None:
    with pytest.raises(NotImplementedError, match=r"asynchronous.*never equal those of one device") as refusal:
        strategies.ParameterServerStrategy(**arguments)
    for name in ("CentralStorageStrategy", "MultiWorkerMirroredStrategy", "HorovodStrategy"):
        assert f"strategies.{name}" in str(refusal.value)
        assert hasattr(strategies, name)
