"""Trains one case of `test_placement`, and checks in TensorFlow's profile on which device each op ran.

Arguments: the name of the case, and a folder for the profile.
"""

from __future__ import annotations

import collections
import pathlib
import re
import sys

# First: it makes the devices.
import tests.conftest  # noqa: F401  isort: skip

from tests.keras_ext.pipeline.ops_of_steps import nodes_run_by, profiled
from tests.keras_ext.pipeline.test_placement import (
    CASES,
    KINDS,
    devices_of,
    expected_of,
    has_layer,
    is_of_layer,
    unlike,
)
from tests.strategies.parity.harness import features

NUM_PROFILED = 3


def main(name: str, folder: pathlib.Path) -> None:
    axes, num_microbatches = CASES[name]
    model = unlike(axes, num_microbatches)
    rows = 2 * num_microbatches * axes.get("data", 1)
    x, y = features(rows, 6), features(rows, 8)
    nodes = nodes_run_by(lambda: model.train_on_batch(x, y))
    of_layers = {node.name: node for node in nodes if is_of_layer(node)}
    assert [node for node in nodes if is_of_layer(node) and node.device != of_layers[node.name].device] == []
    ran = profiled(lambda: [model.train_on_batch(x, y) for _ in range(NUM_PROFILED)], folder)

    products, seen = collections.Counter[str](), collections.defaultdict[str, set[str]](set)
    for node_name, op in ran:
        if has_layer(node_name):
            node = of_layers[node_name]
            assert node.device in expected_of(node, axes)
            # Forward and backward: TensorFlow may fuse ops into one node, which keeps the last one's name.
            seen[re.sub(r"_\d+$", "", node_name.rpartition("/")[2])].add(node.device)
        if op.endswith("MatMul"):
            products[of_layers[node_name].device] += 1
        if op == "_Send":
            # Only graphs send between devices, never the functions that they call.
            assert node_name in {node.name for node in nodes if node.call is None}
    for layer, kind in enumerate(KINDS):
        for each in (kind, f"{kind}Grad"):
            assert seen[each], each
            assert seen[each] <= devices_of(layer * axes["pipe"] // 4, axes), each
    # For each layer of a stage one forward and two backward, except the gradient of the model's inputs.
    per_device = {
        device: 3 * 4 // axes["pipe"] - (stage == 0)
        for stage in range(axes["pipe"])
        for device in devices_of(stage, axes)
    }
    assert products == {device: NUM_PROFILED * num_microbatches * count for device, count in per_device.items()}


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
