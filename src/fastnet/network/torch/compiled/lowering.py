"""Compiles a captured graph to a function of flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fastnet.backend.torch._internals import compile_graph, decompositions, find_backend
from fastnet.backend.torch.autocast import autocast_is_enabled, without_autocast
from fastnet.network.compile_options import CompileOptions
from fastnet.network.torch.compiled.capture import Capture
from fastnet.network.torch.compiled.uncapturable import Uncapturable

# Up to this number of multiplications, a loop takes less time than a call of a BLAS function.
_SMALL_PRODUCT = 16_384

_LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default

Call = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Lowered(NamedTuple):
    """A step as a function."""

    # Takes a list, which it may empty: the open size, if there is one, and the inputs.
    call: Call
    # The indices of the graph's inputs that it takes, and of those that it writes to.
    used: list[int]
    written: list[int]
    # Whether it can run a size of axis 0, if that is open.
    admits: Callable[[int], bool] | None = None
    # Whether an operation keeps values for its backward only in grad mode.
    needs_grad_mode: bool = False


def lower(capture: Capture, options: CompileOptions, size: int | None = None) -> Lowered:
    """Compile a captured graph."""
    lowered = _lower(capture, options, size)
    if autocast_is_enabled():
        # The graph has the casts of the traced ops; more would come where they disabled autocast.
        return lowered._replace(call=without_autocast(lowered.call))
    return lowered


@without_autocast
def _lower(capture: Capture, options: CompileOptions, size: int | None) -> Lowered:
    graph, mode = capture.graph, capture.mode
    # Inductor's cache on disk stores conditions on symbolic sizes with the program.
    sizes = [] if capture.size is None else [capture.size]
    table: dict[Any, Any] = {}
    if options.backend in (None, "inductor"):
        table = decompositions(options.fallback_random)
        table |= _small_products(dict(table), partial(_length, size))
    with mode, torch.no_grad():
        plain = [
            torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
            for tensor in capture.examples
        ]
        functional = torch.func.functionalize(graph, remove="mutations")
        graph = make_fx(
            lambda *inputs: functional(*inputs[len(sizes) :]),
            decomposition_table=table,
            tracing_mode="real",
        )(*sizes, *plain)
    graph.graph.eliminate_dead_code()
    used: list[int] = []
    written: list[int] = []
    examples: list[Any] = [*sizes]
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(inputs[len(sizes) :]):
        if not node.users:
            graph.graph.erase_node(node)
            continue
        if any(user.target is torch.ops.aten.copy_.default for user in node.users):
            written.append(index)
        used.append(index)
        examples.append(plain[index])
    graph.recompile()
    call = _compile(graph, examples, mode, options)
    needs_grad_mode = any(node.target is _LSTM_BACKWARD for node in graph.graph.nodes)
    if capture.size is None:
        return Lowered(call, used, written, needs_grad_mode=needs_grad_mode)
    admits = _admitted(mode, capture.size)
    if admits is None:
        raise Uncapturable("what the ops do depends on the size of the batch")
    return Lowered(call, used, written, admits, needs_grad_mode)


def _length(usual: int | None, size: Any) -> int:
    """Return a size, or for an open one its usual length."""
    return size if isinstance(size, int) else usual or int(size.node.hint)


def _admitted(mode: Any, size: Any) -> Callable[[int], bool] | None:
    """Return a test for the sizes that a trace is valid for; None if it is only one."""
    symbol, env = size.node.expr, mode.shape_env
    conditions = [guard.expr for guard in env.guards]
    # An expression without symbols is a constant: the trace is specialized to it.
    if symbol.free_symbols != {symbol} or any(env.deferred_runtime_asserts.values()):
        return None
    if not all(condition.free_symbols <= {symbol} for condition in conditions):
        return None

    def admits(length: int) -> bool:
        # A length of 1 is not covered by a symbol: it broadcasts, and has no variance.
        return length > 1 and all(
            condition.subs(symbol, length) == True  # noqa: E712
            for condition in conditions
        )

    return admits


def _small_products(others: dict[Any, Any], length: Callable[[Any], int]) -> dict[Any, Any]:
    """Return decompositions of small matrix products, for which Inductor generates loops."""
    product, sum_and_product = torch.ops.aten.mm.default, torch.ops.aten.addmm.default

    def is_small(one: torch.Tensor, other: torch.Tensor) -> bool:
        # Comparing an open size would restrict the program to sizes with the same answer.
        rows, between, columns = map(length, (*one.shape, other.shape[1]))
        return (
            0 < rows * between * columns <= _SMALL_PRODUCT
            and one.dtype in (torch.float32, torch.float64)
            and one.device.type == "cpu"
        )

    def otherwise(op: Any, *args: Any, **settings: Any) -> Any:
        return others[op](*args, **settings) if op in others else NotImplemented

    def mm(one: torch.Tensor, other: torch.Tensor, *rest: Any, **settings: Any) -> Any:
        if rest or settings or not is_small(one, other):
            return otherwise(product, one, other, *rest, **settings)
        return (one.unsqueeze(2) * other.unsqueeze(0)).sum(1)

    def addmm(
        start: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *rest: Any, **settings: Any
    ) -> Any:
        if rest or settings or not is_small(one, other):
            return otherwise(sum_and_product, start, one, other, *rest, **settings)
        return (one.unsqueeze(2) * other.unsqueeze(0)).sum(1) + start

    return {product: mm, sum_and_product: addmm}


def _compile(graph: Any, examples: list[Any], mode: Any, options: CompileOptions) -> Call:
    backend = options.backend
    if backend is None or backend == "inductor":
        compiled: Call = compile_graph(graph, examples, mode, options.fallback_random)
        return compiled
    if backend == "eager":
        return lambda tensors: graph(*tensors)
    make = find_backend(backend) if isinstance(backend, str) else backend
    made: Any = make(graph, examples)
    return lambda tensors: made(*tensors)
