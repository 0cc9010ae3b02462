"""The names that parallel layers are written against: those of `keras_ext`, and layers of a user's own."""

from strategies import _keras_hooks
from strategies._keras_hooks.global_state import global_state_kept
from strategies.engine.waiting import watch_communication
from strategies.replica.parts import ReplicaParts, current_parts
from strategies.replica.splitting import SplitWeight, joined, saved_as


def replica_parts() -> ReplicaParts:
    """Returns the parts of a replica under the strategy whose scope this is called in.

    Example:

        parts = layer_api.replica_parts()
    """
    # A layer that is split has its weights written as one, with or without a strategy.
    _keras_hooks.install()
    return current_parts()


__all__ = [
    "ReplicaParts",
    "SplitWeight",
    "global_state_kept",
    "joined",
    "replica_parts",
    "saved_as",
    "watch_communication",
]
