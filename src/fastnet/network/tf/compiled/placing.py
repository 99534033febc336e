"""On which devices the nodes of a graph are."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["Placing"]


class Placing:
    """The devices of the nodes of a graph, by short names such as "CPU:1".

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Any) -> None:
        with tf.init_scope():
            self._here = tf.DeviceSpec.from_string(tf.constant(0).device)
        self._variables = {
            inside.name: outside.device
            for outside, inside in graph.captures
            if outside.dtype == tf.resource
        }

    def devices_of(self, operation: tf.Operation) -> list[str]:
        """Return the devices of a node: those of the variables that it takes, and its own.

        Args:
            operation: The node.

        Returns:
            Their names, of which the first is where it runs; "" if it names none.
        """
        variables = (self._variables.get(one.name) for one in operation.inputs)
        return [self.short(one) for one in (*filter(None, variables), operation.device)]

    def short(self, device: str) -> str:
        """Return the short name of a device.

        Args:
            device: Its name. That of another process's is returned as it is, and of none "".
        """
        found, here = tf.DeviceSpec.from_string(device), self._here
        if found.job not in (None, here.job) or found.task not in (None, here.task):
            return device
        kind = found.device_type
        return "" if kind is None else f"{kind}:{found.device_index or 0}"
