"""Compiles a captured graph to a function of flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fastnet.backend.torch._internals import compile_graph, decompositions, find_backend
from fastnet.network.compile_options import CompileOptions
from fastnet.network.torch.compiled.capture import Capture
from fastnet.network.torch.compiled.uncapturable import Uncapturable

__all__ = ["Lowered", "lower"]

# multiplications, of which these many take less time than calling a function for them does
_SMALL_PRODUCT = 16_384

# of tanh(x) / x - 1 over x ** 2, by powers of that, up to where it is used
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
_NEAR = 0.625

_LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default

Call = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Lowered:
    """A step as a function.

    Args:
        call: The function. It takes a list, which it may empty: the size that is open, where one
            is, and the inputs.
        used: The places of the inputs that it takes, among those of the graph.
        written: The places of the inputs that it writes to.
        admits: Tells for which sizes it is; None if no size is open.
        needs_grad_mode: Whether an operation keeps values for its backward only in grad mode.
    """

    def __init__(
        self,
        call: Call,
        used: list[int],
        written: list[int],
        admits: Callable[[int], bool] | None = None,
        needs_grad_mode: bool = False,
    ) -> None:
        self.call = call
        self.used = used
        self.written = written
        self.admits = admits
        self.needs_grad_mode = needs_grad_mode


def lower(
    capture: Capture,
    options: CompileOptions,
    size: int | None = None,
) -> Lowered:
    """Compile a captured graph."""
    graph, mode = capture.graph, capture.mode
    # Inductor's cache on disk stores conditions on symbolic sizes with the program.
    sizes = [] if capture.size is None else [capture.size]
    table: dict[Any, Any] = {}
    left: list[Any] = []
    if options.backend in (None, "inductor"):
        table = decompositions(options.fallback_random)
        left = _left_to_torch(graph) if capture.device.type == "cpu" else []
        table = {
            **{op: way for op, way in table.items() if op not in left},
            **_small_products(table, partial(_length, size)),
            torch.ops.aten.tanh.default: _tanh,
        }
    with mode, torch.no_grad():
        plain = [
            torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=one.device)
            for one in capture.examples
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
    for place, node in enumerate(inputs[len(sizes) :]):
        if not node.users:
            graph.graph.erase_node(node)
            continue
        if any(user.target is torch.ops.aten.copy_.default for user in node.users):
            written.append(place)
        used.append(place)
        examples.append(plain[place])
    graph.recompile()
    call = _compile(graph, examples, mode=mode, options=options, left=left)
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
    if not all(one.free_symbols <= {symbol} for one in conditions):
        return None

    def admits(length: int) -> bool:
        # A length of 1 is not covered by a symbol: it broadcasts, and has no variance.
        return length > 1 and all(one.subs(symbol, length) == True for one in conditions)  # noqa: E712

    return admits


def _left_to_torch(graph: torch.fx.GraphModule) -> list[Any]:
    """List the operations of a graph that torch's kernels do faster than loops would.

    A backward pass through max pooling goes by the places that torch's forward pass has found;
    loops look for them again.
    """
    forward = torch.ops.aten.max_pool2d_with_indices.default
    backward = torch.ops.aten.max_pool2d_with_indices_backward.default
    trains = any(node.target is backward for node in graph.graph.nodes)
    return [forward, backward] if trains else []


def _small_products(others: dict[Any, Any], length: Callable[[Any], int]) -> dict[Any, Any]:
    """Return what takes small products of matrices apart, for a compiler to make loops of."""
    product, sum_and_product = torch.ops.aten.mm.default, torch.ops.aten.addmm.default

    def is_small(one: torch.Tensor, other: torch.Tensor) -> bool:
        # an open size is not asked: it would be bounded by the answer
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


def _tanh(one: torch.Tensor) -> Any:
    """Take a tanh apart on the CPU, as loops over Inductor's own take twice the time or more.

    It is that of Cephes, up to 1.2 units in the last place of float32: near 0 a polynomial, which
    is exact there, and else by a single exponential.
    """
    if one.device.type != "cpu" or one.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return NotImplemented
    wide = one.float()
    size, square = wide.abs(), wide * wide
    series: Any = _TANH[0]
    for factor in _TANH[1:]:
        series = series * square + factor
    far = 1 - 2 / ((size + size).exp() + 1)
    found = torch.where(size < _NEAR, series * square * size + size, far)
    return torch.copysign(found, wide).to(one.dtype)


def _compile(
    graph: Any,
    examples: list[Any],
    *,
    mode: Any,
    options: CompileOptions,
    left: list[Any],
) -> Call:
    backend = options.backend
    if backend is None or backend == "inductor":
        compiled: Call = compile_graph(graph, examples, mode, options.fallback_random, left)
        return compiled
    if backend == "eager":
        return lambda tensors: graph(*tensors)
    make = find_backend(backend) if isinstance(backend, str) else backend
    made: Any = make(graph, examples)
    return lambda tensors: made(*tensors)
