"""ResNets have the sizes that are published, and their plans are those of replicas."""

from __future__ import annotations

import pytest

from strategies.planning import Layout, ResNet, gpu_of, resnet_search
from strategies.planning.resnet import resnet_bytes, resnet_time

A100 = gpu_of("A100")


@pytest.mark.parametrize(("depth", "parameters"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808)])
def test_sizes(depth: int, parameters: int) -> None:
    assert ResNet(depth).num_parameters == parameters


def test_operations_are_those_of_the_usual_count() -> None:
    # 4.1 billion multiplications and additions of an image of 224 pixels, by the paper's successors' count.
    assert sum(each.flops for each in ResNet(50).convolutions()) / 2e9 == pytest.approx(4.09, abs=0.01)


def test_time_and_memory_follow_the_images() -> None:
    one, two = (resnet_time(ResNet(50), Layout(4, microbatch_size=size), 4 * size, A100) for size in (64, 128))
    assert 1.8 < two.layers / one.layers < 2
    assert one.update == two.update
    small, large = (resnet_bytes(ResNet(50), Layout(4, microbatch_size=size)) for size in (64, 128))
    assert large.activations == 2 * small.activations
    assert large.weights == small.weights
    sharded = resnet_bytes(ResNet(50), Layout(4, microbatch_size=64, shard="optimizer"))
    assert sharded.slots == small.slots / 4


def test_a_resnet_is_not_split() -> None:
    found = resnet_search(ResNet(50), 1024, 4, A100)
    assert not found.splits
    assert found.best[0].layout == Layout(4, microbatch_size=256)
    # With so many images of a device, only accumulated micro-batches fit.
    assert resnet_search(ResNet(152), 4 * 4096, 4, A100).best[0].layout.microbatch_size < 4096


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a depth of 50, 101, 152.*Received: \{'depth': 34"):
        ResNet(34)
    with pytest.raises(ValueError, match=r"same number of images.*Received: batch_size=10, num_devices=4"):
        resnet_search(ResNet(50), 10, 4, A100)
