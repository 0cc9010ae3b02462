"""Processes that would share a GPU are refused on every rank, with the ranks and the GPU named."""

from __future__ import annotations

import ctypes
import json
import socket
from typing import Any

import pytest
import tensorflow as tf

from strategies.topology.gpus import SHARING_VARIABLE, claim, refuse_shared, used_gpus


def claimed(*ids: str, host: str = "a", visible: str | None = None, may_share: bool = False) -> str:
    return json.dumps({"gpus": ids, "host": host, "CUDA_VISIBLE_DEVICES": visible, "may share": may_share})


def test_ranks_with_gpus_of_their_own() -> None:
    refuse_shared([claimed(), claimed()])
    refuse_shared([claimed("GPU-1", "GPU-2"), claimed("GPU-3"), claimed()])


def test_ranks_that_share_are_named() -> None:
    claims = [
        claimed("GPU-1", visible="0"),
        claimed("GPU-2"),
        claimed("GPU-3", "GPU-1", visible="0"),
        claimed("GPU-2", may_share=True),
    ]
    with pytest.raises(ValueError, match=r"ranks 0, 2 on a use GPU-1; ranks 1, 3 on a use GPU-2\.") as error:
        refuse_shared(claims)
    assert "CUDA_VISIBLE_DEVICES ['0', None, '0', None]" in str(error.value)
    assert f"{SHARING_VARIABLE}=1 on all processes" in str(error.value)


def test_sharing_on_purpose(caplog: pytest.LogCaptureFixture) -> None:
    refuse_shared([claimed("GPU-1", may_share=True)] * 2)
    assert "Processes share GPUs" in caplog.text
    with pytest.raises(ValueError, match="ranks 0, 1"):
        refuse_shared([claimed("GPU-1", may_share=True), claimed("GPU-1")])


class Cuda:
    """A fake of CUDA's driver, with two GPUs."""

    def __init__(self, name: str) -> None:
        assert name == "libcuda.so.1"

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal
        return 0 if ordinal < 2 else 101

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:  # noqa: N802
        uuid._obj[:] = [*range(15), device.value]
        return 0


class Gpus:
    """A fake of TensorFlow's configuration, with `number` GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, has_started: bool = False) -> None:
        self.all = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(number)]
        self.visible = list(self.all)
        self.has_started = has_started
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: self.all)
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: self.visible)
        monkeypatch.setattr(tf.config, "set_visible_devices", self.set)

    def set(self, devices: Any, kind: str) -> None:
        if self.has_started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = devices

    @property
    def names(self) -> list[str]:
        return [gpu.name[-5:] for gpu in self.visible]


def test_a_process_says_what_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARING_VARIABLE, "1")
    monkeypatch.setattr(socket, "gethostname", lambda: "a")
    found = Gpus(monkeypatch, 3)
    found.set(found.all[1:], "GPU")
    monkeypatch.setattr(ctypes, "CDLL", Cuda)
    # CUDA does not know the last one.
    assert used_gpus() == ["GPU-00010203-0405-0607-0809-0a0b0c0d0e01", "GPU 2 of a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 6,7")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert used_gpus() == ["GPU 6 of a", "GPU 7 of a"]
    assert json.loads(claim()) == {
        "gpus": used_gpus(),
        "host": "a",
        "CUDA_VISIBLE_DEVICES": "5, 6,7",
        "may share": True,
    }


def test_nothing_is_used_without_gpus() -> None:
    assert used_gpus() == []
