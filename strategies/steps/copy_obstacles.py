"""Finds ops that would not do in a copy what they do in a replica that is traced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strategies._tf_internals import op_definitions
from strategies.steps.function_copies import definition_of, functions_of

#: Prefixes of ops with keys that must be unique: a copied collective or transfer would have the key of the original.
_EXCHANGES = ("Collective", "Horovod", "Nccl", "_Send", "_Recv", "_HostSend", "_HostRecv")


class Obstacles:
    """Looks at ops, and at those of the functions that they call, at each function once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def reason(self, nodes: Iterable[Any]) -> str | None:
        """Returns why one of the ops cannot be copied, worded as the end of a sentence; None if all can.

        Args:
            nodes: the definitions of the ops.
        """
        for node in nodes:
            if (found := _reason(node)) is not None:
                return found
            for name in functions_of(node):
                if name not in self._known:
                    self._known.add(name)
                    if (found := self.reason(definition_of(name).node_def)) is not None:
                        return found
        return None


def _reason(node: Any) -> str | None:
    """Returns why an op cannot be copied, or None."""
    if node.op.startswith(_EXCHANGES):
        return f"a replica runs a collective of its own ({node.op})"
    if "seed2" in node.attr and "seed" in node.attr:
        return f"it draws random numbers that follow from the position of an op in its graph ({node.op})"
    definition = op_definitions.get(node.op)
    if definition is not None and any(each.name == "shared_name" for each in definition.attr):
        return f"it makes a resource ({node.op})"
    return None
