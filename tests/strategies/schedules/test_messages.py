"""The messages between devices, as literal tables."""

from __future__ import annotations

from strategies.schedules.messages import Traffic, with_messages
from strategies.schedules.named import interleaved, one_forward_one_backward, zero_bubble_h1
from strategies.schedules.schedule import Schedule


def table(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, actions)) for actions in schedule.devices]


def test_messages() -> None:
    assert table(with_messages(one_forward_one_backward(2, 2))) == [
        "0F0 0SF0 0F1 0SF1 0RB0 0B0 0RB1 0B1",
        "1RF0 1F0 1B0 1SB0 1RF1 1F1 1B1 1SB1",
    ]


def test_gradients_of_weights_are_not_sent() -> None:
    assert table(with_messages(zero_bubble_h1(2, 2))) == [
        "0F0 0SF0 0F1 0SF1 0RB0 0I0 0W0 0RB1 0I1 0W1",
        "1RF0 1F0 1I0 1SB0 1RF1 1F1 1I1 1SB1 1W0 1W1",
    ]


def test_stages_of_one_device_send_nothing() -> None:
    assert table(with_messages(interleaved(1, 1, 2))) == ["0F0 1F0 1B0 0B0"]


class TestTraffic:
    """Four stages, alternating between processes 0 and 1: stage 0's output goes to stages 1, 2 and 3."""

    made = (("a",), ("b",), ("c", "early"), ("late",))
    taken = (("x",), ("a",), ("a", "b"), ("a", "c", "x"))

    def traffic(self, process_of: tuple[int, ...], outputs_to: set[int]) -> Traffic:
        return Traffic.create(self.made, self.taken, ("early", "late"), process_of, outputs_to)

    def test_each_value_goes_once_to_each_process_that_takes_it(self) -> None:
        traffic = self.traffic((0, 1, 0, 1), {1})
        # Neither "x", which all processes have, nor "a" from stage 0 to stage 2, in the same process.
        assert traffic.forward == ({1: ("a",)}, {0: ("b",)}, {1: ("c", "early")}, {})
        # The gradient of "a", which stages 1 and 3 of one process use, goes with the later backward pass, stage 1's.
        assert traffic.backward == ({}, {0: ("a",)}, {1: ("b",)}, {0: ("c", "early")})
        assert traffic.last == 1

    def test_a_skip_goes_straight_to_its_takers(self) -> None:
        traffic = self.traffic((0, 1, 2, 3), {3})
        assert traffic.forward == ({1: ("a",), 2: ("a",), 3: ("a",)}, {2: ("b",)}, {3: ("c", "early")}, {})
        assert traffic.backward == ({}, {0: ("a",)}, {0: ("a",), 1: ("b",)}, {0: ("a",), 2: ("c", "early")})

    def test_outputs_to_all(self) -> None:
        traffic = self.traffic((0, 1, 2, 3), {0, 1, 2, 3})
        assert traffic.forward[2] == {3: ("c", "early"), 0: ("early",), 1: ("early",)}
        assert traffic.forward[3] == {0: ("late",), 1: ("late",), 2: ("late",)}
        # Only the last stage computes a loss of the outputs.
        assert traffic.backward[3] == {0: ("a",), 2: ("c", "early")}

    def test_in_one_process_nothing_is_sent(self) -> None:
        traffic = self.traffic((0, 0, 0, 0), {0})
        assert not any(traffic.forward)
        assert not any(traffic.backward)
