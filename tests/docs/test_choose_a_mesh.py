"""The tables of `choose_a_mesh.md`: the example from formulas, coordinates from the placement of processes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import pytest
from gpt.model import Sizes, build_model

import keras_ext
import strategies
from strategies.topology.placement import mesh_over_processes, owned_parts

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "choose_a_mesh.md").read_text()

#: The model of the page: blocks, hidden size, heads, tokens in a row, vocabulary; and its batch.
BLOCKS, UNITS, HEADS, TOKENS, VOCABULARY = 24, 2048, 16, 1024, 50304
BATCH, MICROBATCH = 64, 4
HOSTS, FLOPS, INSIDE = 2, 1e14, 200e9
GB = 1e9


def _parameters(blocks: int, units: int, tokens: int, vocabulary: int) -> int:
    """Returns the number of parameters of a model of examples/gpt."""
    ends = (vocabulary + tokens) * units + 2 * units + vocabulary * units + vocabulary
    return blocks * (12 * units**2 + 13 * units) + ends


@dataclass(frozen=True)
class Cost:
    """The page's numbers for a mesh, computed."""

    data: int = 1
    pipe: int = 1
    tensor: int = 1

    @property
    def rows(self) -> int:
        """The number of rows of a replica."""
        return BATCH // self.data

    @property
    def num_microbatches(self) -> int:
        """The number of micro-batches; 1 without stages."""
        return self.rows // MICROBATCH if self.pipe > 1 else 1

    @property
    def parameters(self) -> float:
        """The number of parameters on a device of the first stage."""
        blocks = BLOCKS / self.pipe * (12 * UNITS**2 + 13 * UNITS) / self.tensor
        head = (VOCABULARY * UNITS + VOCABULARY) / self.tensor + 2 * UNITS
        return blocks + (VOCABULARY / self.tensor + TOKENS) * UNITS + (head if self.pipe == 1 else 0)

    def activations(self, *, sequence_parallel: bool = False) -> float:
        """Returns the bytes of the first stage's activations: under 1F1B, those of all blocks for one micro-batch."""
        block = TOKENS * self.rows // self.num_microbatches * UNITS
        scores = 5 * HEADS * TOKENS / UNITS
        if self.tensor == 1 or sequence_parallel:
            return BLOCKS * block * (34 + scores) / self.tensor
        return BLOCKS * block * (10 + 24 / self.tensor + scores / self.tensor)

    @property
    def logits(self) -> float:
        """The bytes of logits on the first stage."""
        return 4 * TOKENS * self.rows * VOCABULARY / self.tensor if self.pipe == 1 else 0

    @property
    def sent(self) -> tuple[float, float, float]:
        """The bytes that a device sends along each axis in a step."""
        whole = 2 * self.rows * TOKENS * UNITS
        return (
            2 * (self.data - 1) / self.data * 4 * self.parameters,
            4 * BLOCKS / self.pipe * 2 * (self.tensor - 1) / self.tensor * whole,
            2 * whole * (self.pipe > 1),
        )

    @property
    def leaves_host(self) -> float:
        """The bytes that leave a host: data's rings, one for each part of a replica, or one stage's messages."""
        data, _, pipe = self.sent
        return data * self.pipe * self.tensor if self.data > 1 else pipe / 2 * self.tensor

    @property
    def bubble(self) -> float:
        """The idle fraction of a step."""
        return (self.pipe - 1) / (self.num_microbatches + self.pipe - 1)

    @property
    def messages(self) -> tuple[int, int, int]:
        """The number of messages of a device along each axis in a step."""
        m = self.num_microbatches
        return (
            math.ceil(4 * self.parameters / 2**25) * (self.data > 1),
            4 * BLOCKS // self.pipe * m * (self.tensor > 1),
            2 * m * (self.pipe > 1),
        )

    def seconds(self, between_hosts: float) -> float:
        """Returns the seconds of a step."""
        computing = _operations() / 8 / FLOPS
        waits = self.leaves_host / between_hosts if self.data > 1 else 0
        hidden = 2 / 3 * computing if self.pipe == 1 else 0
        return computing / (1 - self.bubble) + self.sent[1] / INSIDE + max(0, waits - hidden)


def _operations() -> float:
    in_blocks = 72 * BATCH * TOKENS * BLOCKS * UNITS**2
    return in_blocks * (1 + TOKENS / (6 * UNITS) + VOCABULARY / (12 * BLOCKS * UNITS))


COSTS = (Cost(data=8), Cost(data=4, tensor=2), Cost(2, 2, 2), Cost(pipe=2, tensor=4))


def _row(name: str) -> list[str]:
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    return [cell.strip() for cell in line.strip("|").split(" | ")][1:]


def _numbers(values: Sequence[float], digits: int) -> list[str]:
    return [f"{value:.{digits}f}" if value else "0" for value in values]


def test_the_formula_counts_the_parameters_of_the_model() -> None:
    sizes = Sizes(num_tokens=48, sequence_length=6, num_layers=3, num_heads=2, units=8)
    assert build_model(sizes).count_params() == _parameters(3, 8, 6, 48)
    assert Cost(data=8).parameters == _parameters(BLOCKS, UNITS, TOKENS, VOCABULARY)
    assert Sizes(VOCABULARY, TOKENS, BLOCKS, HEADS, UNITS).vocabulary_size == VOCABULARY


def test_bytes_of_a_device() -> None:
    weights = [4 * cost.parameters / GB for cost in COSTS]
    activations = [cost.activations() / GB for cost in COSTS]
    together = [4 * w + a + c.logits / GB for w, a, c in zip(weights, activations, COSTS, strict=True)]
    tables = PAGE.partition("| GB on a device")[2]
    for name in ("weights", "gradients"):
        assert f"| {name} | {' | '.join(_numbers(weights, 2))} |" in tables
    assert _row("Adam's slots") == _numbers([2 * w for w in weights], 2)
    assert _row("activations of the blocks") == _numbers(activations, 1)
    whole = [cost.activations(sequence_parallel=True) / GB for cost in COSTS]
    assert _row("with `sequence_parallel=True`") == _numbers(whole, 1)
    assert _row("logits in float32") == _numbers([cost.logits / GB for cost in COSTS], 2)
    assert _row("together, without") == _numbers(together, 1)
    assert f"{COSTS[0].parameters / 1e9:.3f} billion" in " ".join(PAGE.split())


def test_what_a_step_sends() -> None:
    assert _row("rows of a replica, micro") == [f"{c.rows}, {c.num_microbatches}" for c in COSTS]
    assert _row("bubble (p - 1)") == [f"{100 * c.bubble:.1f} %" if c.bubble else "0" for c in COSTS]
    assert _row("messages of a device: data") == [", ".join(map(str, cost.messages)) for cost in COSTS]
    for axis, name in enumerate(("GB sent by a device along data", "along tensor, by", "along pipe, forward")):
        assert _row(name) == _numbers([cost.sent[axis] / GB for cost in COSTS], 2)
    assert _row("GB that leave a host") == _numbers([cost.leaves_host / GB for cost in COSTS], 2)


def test_seconds_of_a_step() -> None:
    assert f"{_operations() / 1e14:.1f} · 10¹⁴ operations: {_operations() / 8 / FLOPS:.2f} s" in " ".join(PAGE.split())
    for between_hosts in (12.5, 100):
        assert _row(f"W = {between_hosts:g} GB/s |") == _numbers([c.seconds(1e9 * between_hosts) for c in COSTS], 2)


def test_coordinates_of_eight_ranks() -> None:
    meshes = [mesh_over_processes(8, {"data": c.data, "pipe": c.pipe, "tensor": c.tensor}, [""]) for c in COSTS]
    header = _row("rank | host")[1:]
    assert header == [
        "`" + ",".join(f"{axis}={size}" for axis, size in mesh.axes.items() if size > 1) + "`" for mesh in meshes
    ]
    for rank in range(8):
        at = [".".join(str(mesh.position(rank, axis)) for axis in ("data", "pipe", "tensor")) for mesh in meshes]
        assert _row(f"{rank} | {rank // 4} |")[1:] == at


@pytest.mark.parametrize(("num_processes", "num_parts"), [(8, 1), (4, 2), (2, 4), (1, 4)])
def test_what_a_process_owns(num_processes: int, num_parts: int) -> None:
    devices = [f"CPU:{index}" for index in range(8 // num_processes)]
    mesh = mesh_over_processes(num_processes, {"data": 2, "pipe": 2, "tensor": 2}, devices)
    assert len(owned_parts(mesh, 0)) == num_parts
    assert re.search(rf"^\| {num_processes} \| {len(devices)} \| ", PAGE, flags=re.MULTILINE)


def test_a_box_is_refused_where_the_page_says_so() -> None:
    with pytest.raises(ValueError, match="box"):
        mesh_over_processes(3, {"pipe": 2, "tensor": 3}, ["CPU:0", "CPU:1"])


def test_bytes_of_experts_and_when_their_axis_stops_paying() -> None:
    size, hidden = 2, 16
    strategy = strategies.MirroredStrategy([f"CPU:{index}" for index in range(4)], mesh={"data": 2, "expert": size})
    with strategy.scope():
        mixture = keras_ext.MixtureOfExperts(4, hidden, shared_hidden_dim=8, load_balancing_loss=0.0)
        model = keras.Sequential([keras.Input((8,)), mixture, keras.layers.Dense(8, use_bias=False)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    of_experts, others = 3 * 4 * 8 * hidden, 8 * 4 + 3 * 8 * 8 + 8 * 8
    assert model.count_params() == of_experts + others
    assert "16 P' / e, and all else with 1 / e of the slots, (8 + 8 / e) (P - P')" in PAGE
    report = keras_ext.memory_report(model)
    for device, weights in report.weights.items():
        # Gradients have the size of weights; besides the slots there are the learning rate and the step count.
        found = 2 * weights + report.slots[device]
        expected = 16 * of_experts / size + (8 + 8 / size) * others
        assert 0 <= found - expected <= 16
    text = " ".join(PAGE.split())
    ratio = [4 * 2 * (e - 1) / e / 18 for e in (2, 8)]
    assert f"0.{round(100 * 8 / 18)} (e - 1) / e" in text
    bandwidths = [each * FLOPS / 4096 / 0.1 / GB for each in ratio]
    assert f"at e = 2 if W = {bandwidths[0]:.0f} GB/s, at e = 8 if W = {bandwidths[1]:.0f} GB/s" in text
