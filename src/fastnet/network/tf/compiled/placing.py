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

    def device_of(self, operation: tf.Operation) -> str:
        """Return the device of a node; "" if it names none.

        Args:
            operation: The node. One that takes a variable is where this is.
        """
        devices = (self._variables.get(one.name) for one in operation.inputs)
        return self.short(next(filter(None, devices), operation.device))

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
