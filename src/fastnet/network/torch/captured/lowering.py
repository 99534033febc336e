"""What was traced, made into a function of flat tensors by a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fastnet.backend.torch._internals import Tools
from fastnet.network.compiling import CompileOptions
from fastnet.network.torch.captured.capture import Capture

__all__ = ["Lowered", "lower"]

Call = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Lowered:
    """A step as a function.

    Args:
        call: The function. It takes a list, which it may empty.
        used: The places of the inputs that it takes, among those of the graph.
        written: The places of the inputs that it writes to.
    """

    def __init__(self, call: Call, used: list[int], written: list[int]) -> None:
        self.call = call
        self.used = used
        self.written = written


def lower(capture: Capture, options: CompileOptions, tools: Tools) -> Lowered:
    """Compile what was traced.

    Args:
        capture: What was traced.
        options: How it is to be compiled.
        tools: What torch has for it.

    Returns:
        The function.

    Raises:
        Exception: Whatever the compiler raises.
    """
    by_inductor = options.backend == "inductor"
    decompositions = tools.decompositions(options.fallback_random) if by_inductor else {}
    graph, mode = capture.graph, capture.mode
    with mode, torch.no_grad():
        plain = [
            torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=one.device)
            for one in capture.examples
        ]
        functional = torch.func.functionalize(graph, remove="mutations")
        graph = tools.make_graph(
            functional, decomposition_table=decompositions, tracing_mode="real"
        )(*plain)
    graph.graph.eliminate_dead_code()
    used, written, examples = [], [], []
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for place, node in enumerate(inputs):
        if not node.users:
            graph.graph.erase_node(node)
            continue
        if any(user.target is torch.ops.aten.copy_.default for user in node.users):
            written.append(place)
        used.append(place)
        examples.append(plain[place])
    graph.recompile()
    return Lowered(_compile(graph, examples, mode, options, tools), used, written)


def _compile(
    graph: Any, examples: list[torch.Tensor], mode: Any, options: CompileOptions, tools: Tools
) -> Call:
    backend = options.backend
    if backend == "inductor":
        return tools.compile(graph, examples, mode, options.fallback_random)
    if backend == "eager":
        return lambda tensors: graph(*tensors)
    make = tools.backend(backend) if isinstance(backend, str) else backend
    made: Any = make(graph, examples)
    return lambda tensors: made(*tensors)
