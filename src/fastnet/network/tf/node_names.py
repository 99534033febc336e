"""Names nodes of graphs by the op and the layer that made them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastnet.backend.tf.autograph import source_of
from fastnet.backend.tf.models import all_layers
from fastnet.errors import add_note, describe_op
from fastnet.types import Model


def scope_of(op: Any, index: int) -> str:
    """Return the name scope of an op's nodes, which errors and profiles show."""
    return f"op{index}_{re.sub('[^A-Za-z0-9_]', '', type(op).__name__)}"


class NodeNames:
    """Names the nodes of graphs that were traced from some ops, by their name scopes.

    Args:
        ops: The ops.
        models: The models that they run.
    """

    def __init__(self, ops: Sequence[Any], models: Sequence[Model]) -> None:
        self._ops = ops
        self._models = models

    def describe(self, node: str) -> str | None:
        """Describe the op, and the layer, that a node belongs to; None for a node of no op."""
        scope = re.search(r"(?:^|[/_^])op(\d+)_\w*?/", node)
        if not scope or int(scope[1]) >= len(self._ops):
            return None
        text = describe_op(self._ops[int(scope[1])], int(scope[1]))
        layer = self._layer_in(node[scope.end() :])
        if layer is not None:
            text = f"layer '{layer}' of {text}"
        return f"the gradient of {text}" if "gradient_tape/" in node[: scope.start(1)] else text

    def explain(self, error: BaseException, graph: Any) -> None:
        """Name the op in an error that was raised while a graph ran."""
        for node in re.findall(r"\{\{node ([^}]*)\}\}", str(error)):
            op = self.describe(node)
            if op:
                add_note(error, f"Raised by {op}.")
                line = source_of(graph, node)
                if line:
                    add_note(error, line)
                return

    def _layer_in(self, scopes: str) -> str | None:
        """Return the name of the innermost layer among the scopes of a node, if there is one."""
        names = {layer.name for model in self._models for layer in all_layers(model)[1:]}
        for scope in reversed(scopes.split("/")):
            # The scopes of further calls of a layer are numbered.
            for name in (scope, re.sub(r"_\d+$", "", scope)):
                if name in names:
                    return name
        return None
