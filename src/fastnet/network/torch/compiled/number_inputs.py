"""Python numbers of ops and of batches that change between steps, as inputs of a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fastnet.backend.torch._internals import is_specialized
from fastnet.network.torch.compiled.uncapturable import Uncapturable

# Arithmetic on numbers alone, which 0-d float64 tensors compute as Python does.
_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.truediv, operator.neg})
_aten = torch.ops.aten
_ELEMENTWISE: dict[Any, Any] = {
    _aten.add.Tensor: torch.add,
    _aten.sub.Tensor: torch.sub,
    _aten.rsub.Scalar: torch.rsub,
    _aten.mul.Tensor: torch.mul,
    _aten.mul.Scalar: torch.mul,
    _aten.div.Tensor: torch.div,
    _aten.div.Scalar: torch.div,
}
_LARGEST_INT = 2**53  # A float64 represents all integers up to this one exactly.


class OpNumber(NamedTuple):
    """A Python number in a dict or in the attributes of an object.

    Attributes:
        path: The path from an op or a model to the number.
        owner: The object, or the dict itself.
        table: The dict. None if the number is elsewhere, and cannot be an input.
        name: The key of the number.
        kind: Its class, int or float.
    """

    path: str
    owner: Any
    table: dict[Any, Any] | None
    name: Any
    kind: type

    def require_table(self) -> dict[Any, Any]:
        """Return `table`, of a number that can be an input."""
        assert self.table is not None
        return self.table

    def is_readable(self) -> bool:
        """Return whether the value is still of the class `kind`, and a program can take it."""
        value: Any = self.require_table().get(self.name)
        return type(value) is self.kind and not is_huge(value)

    def read(self) -> Any:
        """Return the number as it is now."""
        if not self.is_readable():
            raise Uncapturable(f"{self.path} has changed to another type or to a huge number")
        return self.require_table()[self.name]


class BatchNumber(NamedTuple):
    """A Python number of a batch.

    Attributes:
        key: Its key.
        kind: Its class, int or float.
    """

    key: str
    kind: type

    @property
    def path(self) -> str:
        """Its name in messages."""
        return f"'{self.key}' of the batch"

    def fits(self, value: Any) -> bool:
        """Return whether a program takes a value as this number."""
        return type(value) is self.kind and not is_huge(value)


def is_huge(value: Any) -> bool:
    """Return whether a value is an integer so large that a float64 may not represent it exactly."""
    return type(value) is int and not -_LARGEST_INT <= value <= _LARGEST_INT


def bind_numbers(
    module: torch.fx.GraphModule,
    paths: Sequence[str],
    symbols: Sequence[Any],
    entries: Sequence[Callable[[torch.fx.Graph], torch.fx.Node]],
    mode: Any,
) -> None:
    """Replace the last placeholders of a graph, which are symbols of numbers, by 0-d tensors.

    Args:
        module: The graph.
        paths: The path of each number, for messages.
        symbols: The symbol of each number.
        entries: For each number, a function of the graph that returns the node of its tensor.
        mode: The mode of the symbols.
    """
    graph, nodes = module.graph, list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    # The nodes that compute numbers, each with the path of a number that it depends on.
    numbers: dict[torch.fx.Node, str] = {}
    with graph.inserting_after(placeholders[-1]):
        for index, (path, symbol) in enumerate(zip(paths, symbols, strict=True)):
            if is_specialized(mode, symbol):
                raise Uncapturable(f"{path} decides a branch or a shape")
            placeholder = placeholders[index - len(paths)]
            entry = entries[index](graph)
            placeholder.replace_all_uses_with(entry)
            graph.erase_node(placeholder)
            numbers[entry] = path
    for node in nodes:
        sources = [source for source in node.all_input_nodes if source in numbers]
        if not sources:
            continue
        path = numbers[sources[0]]
        if node.target in _ARITHMETIC:
            numbers[node] = path
            continue
        value = node.meta.get("val")
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if node.target not in _ELEMENTWISE or node.kwargs or not is_float:
            raise Uncapturable(f"{path} is used by {node.target}, which takes no tensor for it")
        # PyTorch computes with a Python number in the dtype of the result, but in float32 at least.
        dtype = torch.promote_types(value.dtype, torch.float32)
        with graph.inserting_before(node):
            args = [
                graph.call_method("to", (argument, dtype))
                if isinstance(argument, torch.fx.Node)
                else argument
                for argument in node.args
            ]
            result = graph.call_function(_ELEMENTWISE[node.target], tuple(args))
            result = graph.call_method("to", (result, value.dtype))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    module.recompile()
