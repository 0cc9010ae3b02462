"""Injects faults: kills, stops, slows down or starves processes of a training run at a chosen moment.

This tests whether a run survives faults. Faults are plain data (:func:`fail_at`, :class:`Faults`), passed in the
environment variable ``STRATEGIES_FAULTS``; in the program, the callback :class:`Injector` injects them. A program
without that callback is not affected.

    # in train.py, first among the callbacks
    model.fit(dataset, epochs=3, callbacks=[faults.Injector(), checkpoints])

    # from outside, any number of times
    hurt = faults.fail_at(rank=1, step=40, kind="kill").recorded_in("run/faults")
    subprocess.run(["python", "-m", "strategies.launch", ...], env=os.environ | hurt.environment())
"""

from typing import TYPE_CHECKING, Any

from strategies.testing.faults.plan import VARIABLE, Fault, Faults, Kind, Moment, fail_at

if TYPE_CHECKING:
    from strategies.testing.faults.injector import Injector

__all__ = ["VARIABLE", "Fault", "Faults", "Injector", "Kind", "Moment", "fail_at"]


def __getattr__(name: str) -> Any:
    # The injector imports Keras. A test that only describes faults and starts programs does not need it.
    if name == "Injector":
        from strategies.testing.faults.injector import Injector

        return Injector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
