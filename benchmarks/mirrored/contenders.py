"""The contenders and their comparisons. Pure data: TensorFlow is imported in the contenders' own processes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from harness.ratios import Comparison
from harness.workers import Contender, Report, Run

from mirrored.workload import Workload

# Release criteria of MirroredStrategy: several devices against TensorFlow's, one device against plain Keras.
TARGET_OF_STOCK = 1.0
TARGET_OF_PLAIN = 0.97


def ours(num_devices: int) -> str:
    """Returns the row of our strategy."""
    return f"strategies.MirroredStrategy, {num_devices} device{'s' * (num_devices > 1)}"


def ours_without_xla(num_devices: int) -> str:
    """Returns the row of our strategy without XLA, where the others are compiled."""
    return f"{ours(num_devices)}, without XLA"


def stock(num_devices: int) -> str:
    """Returns the row of TensorFlow's strategy with its defaults."""
    return f"tf.distribute.MirroredStrategy, {num_devices} devices"


def stock_one_device(num_devices: int) -> str:
    """Returns the row of TensorFlow's strategy with the reduction that ours uses on CPU devices."""
    return f"{stock(num_devices)}, ReductionToOneDevice"


PLAIN = "plain Keras, 1 device"
PLAIN_AGAIN = "plain Keras, 1 device, a second process"


def contenders(workload: Workload, device_counts: Sequence[int]) -> list[Contender]:
    """Returns all contenders: ours with 1 and `device_counts` devices, TensorFlow's with `device_counts`.

    Plain Keras is measured twice: the difference of its two processes is the noise of a ratio. With XLA, ours is also
    measured without it, in place of TensorFlow's, which does not support it.
    """
    found = [
        Contender(PLAIN, _runner("plain", workload, 1)),
        Contender(ours(1), _runner("ours", workload, 1)),
        Contender(PLAIN_AGAIN, _runner("plain", workload, 1)),
    ]
    for count in device_counts:
        found.append(Contender(ours(count), _runner("ours", workload, count)))
        if workload.jit_compile:
            without = replace(workload, jit_compile=False)
            found.append(Contender(ours_without_xla(count), _runner("ours", without, count)))
            continue
        found += [
            Contender(stock(count), _runner("stock", workload, count)),
            Contender(stock_one_device(count), _runner("stock_one_device", workload, count)),
        ]
    return found


def comparisons(device_counts: Sequence[int], *, jit_compile: bool = False) -> list[Comparison]:
    """Returns the comparisons for the given numbers of devices."""
    if jit_compile:
        return [
            *(Comparison(f"with XLA / without, {n} devices", ours(n), ours_without_xla(n)) for n in device_counts),
            Comparison("ours on 1 device / plain Keras", ours(1), PLAIN, TARGET_OF_PLAIN),
            *(Comparison(f"ours on {n} devices / plain Keras", ours(n), PLAIN) for n in device_counts),
            Comparison("plain Keras / plain Keras, the noise", PLAIN_AGAIN, PLAIN),
        ]
    found = [
        Comparison(f"ours / stock, {count} devices", ours(count), stock(count), TARGET_OF_STOCK)
        for count in device_counts
    ]
    found.append(Comparison("ours on 1 device / plain Keras", ours(1), PLAIN, TARGET_OF_PLAIN))
    found += [
        Comparison(f"ours / stock with ReductionToOneDevice, {count} devices", ours(count), stock_one_device(count))
        for count in device_counts
    ]
    found += [Comparison(f"ours on {count} devices / plain Keras", ours(count), PLAIN) for count in device_counts]
    found.append(Comparison("plain Keras / plain Keras, the noise", PLAIN_AGAIN, PLAIN))
    return found


def _runner(strategy: str, workload: Workload, num_devices: int) -> Run:
    return functools.partial(_run, strategy, workload, num_devices)


def _run(strategy: str, workload: Workload, num_devices: int, report: Report) -> None:
    from mirrored import training

    training.run(strategy, workload, num_devices, report)
