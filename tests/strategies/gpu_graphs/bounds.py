"""Checks that every GPU step must pass, and bounds on its edges and copies."""

from __future__ import annotations

from typing import Any

from tests.gpu_scan import scan, worst


def check(step: Any, *, copies: int, between_gpus: int, num_collectives: int | None = None) -> None:
    """Scans a concrete function.

    Args:
        step: the function.
        copies: the most copies of tensors between devices, or between a device and its host. A single number counts as
            much as any other tensor: each copy waits for the work before it.
        between_gpus: the most control edges between GPUs.
        num_collectives: the number of collectives on all GPUs; None for any number.
    """
    found = scan(step)
    assert not found.without_kernel(), "\n".join(map(str, found.without_kernel()))
    assert not found.refused(), "\n".join(map(str, found.refused()))
    assert not found.disorders, "\n".join(found.disorders)
    assert not found.with_host(), worst(found.with_host())
    assert len(found.between_gpus()) <= between_gpus, worst(found.between_gpus())
    assert len(found.copies) <= copies, f"{len(found.copies)} copies\n{worst(found.copies)}"
    if num_collectives is not None:
        assert len(found.collectives()) == num_collectives, "\n".join(map(str, found.collectives()))
