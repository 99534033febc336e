"""Compiles a captured graph to a function of flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fastnet.backend.torch._internals import (
    compile_graph,
    decompositions,
    enable_python_dispatcher,
    find_backend,
)
from fastnet.backend.torch.collectives import COLLECTIVES
from fastnet.backend.torch.disable_autocast import autocast_is_enabled, without_autocast
from fastnet.network.compile_options import CompileOptions
from fastnet.network.torch.compiled import products
from fastnet.network.torch.compiled.captured import Capture
from fastnet.network.torch.compiled.open_lengths import (
    LengthValues,
    admitted_lengths,
    independent_lengths,
    require_open,
)
from fastnet.network.torch.compiled.uncapturable import Uncapturable

# Up to this number of multiplications, a loop takes less time than a call of a BLAS function.
_SMALL_PRODUCT = 16_384

_LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default

Call = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Lowered(NamedTuple):
    """A step as a function.

    Attributes:
        call: The function. It takes a list of open lengths and inputs, which it may empty.
        length_inputs: The indices of the open lengths that it takes.
        used: The indices of the graph's inputs that it takes.
        written: The indices of the graph's inputs that it writes to.
        admits: Returns whether it can run a batch, given the value of each open length.
        needs_grad_mode: Whether an operation keeps values for its backward only in grad mode.
    """

    call: Call
    length_inputs: list[int]
    used: list[int]
    written: list[int]
    admits: Callable[[LengthValues], bool]
    needs_grad_mode: bool


def lower(capture: Capture, options: CompileOptions, usual: LengthValues = ()) -> Lowered:
    """Compile a captured graph.

    Args:
        capture: The graph.
        options: The options.
        usual: The most likely value of each open length.
    """
    lowered = _lower(capture, options, usual)
    if autocast_is_enabled():
        # The graph has the casts of the traced ops. Autocast would add some where ops disabled it.
        return lowered._replace(call=without_autocast(lowered.call))
    return lowered


@without_autocast
def _lower(capture: Capture, options: CompileOptions, usual: LengthValues) -> Lowered:
    graph, mode = capture.graph, capture.mode
    require_open(capture.lengths)
    # The lengths are passed beside the tensors, because Inductor's cache on disk stores conditions
    # on numbers that are passed. Lengths that follow from others are not passed.
    lengths = independent_lengths(capture.lengths)
    sizes = [capture.lengths[index].size for index in lengths]
    table: dict[Any, Any] = {}
    if options.backend in (None, "inductor"):
        symbols = (length.symbol for length in capture.lengths)
        likely_length = partial(_likely_length, dict(zip(symbols, usual, strict=True)))
        table = decompositions(options.fallback_random)
        table |= _product_decompositions(dict(table), likely_length)

    # Python's decompositions compute with lengths that are symbols.
    dispatcher = enable_python_dispatcher() if capture.lengths else nullcontext()
    with mode, torch.no_grad(), dispatcher:
        tensors = [
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
        )(*sizes, *tensors)
    graph.graph.eliminate_dead_code()
    if _count_collectives(graph) != _count_collectives(capture.graph):
        raise Uncapturable("the step averages gradients over processes, but does not use them")

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
        examples.append(tensors[index])
    graph.recompile()

    call = _compile(graph, examples, mode, options)
    return Lowered(
        call=call,
        length_inputs=lengths,
        used=used,
        written=written,
        admits=admitted_lengths(mode, capture.lengths),
        needs_grad_mode=any(node.target is _LSTM_BACKWARD for node in graph.graph.nodes),
    )


def _count_collectives(graph: torch.fx.GraphModule) -> int:
    return sum(node.target in COLLECTIVES for node in graph.graph.nodes)


def _likely_length(usual: Mapping[Any, int], size: Any) -> int:
    """Return a size, or the most likely value of an open one."""
    return size if isinstance(size, int) else int(size.node.expr.subs(usual))


def _product_decompositions(
    inductor_decompositions: dict[Any, Any], likely_length: Callable[[Any], int]
) -> dict[Any, Any]:
    """Return decompositions of matrix products.

    Inductor generates loops for small products. Large ones become the operator `fastnet::mm`, where
    that may be faster.

    Args:
        inductor_decompositions: Inductor's decompositions, for products that are neither.
        likely_length: Returns a size, or the most likely value of an open one.
    """
    product, sum_and_product = torch.ops.aten.mm.default, torch.ops.aten.addmm.default

    def is_small(left: torch.Tensor, right: torch.Tensor) -> bool:
        # Comparing an open size would restrict the program to sizes with the same answer.
        rows, inner, columns = map(likely_length, (*left.shape, right.shape[1]))
        return (
            0 < rows * inner * columns <= _SMALL_PRODUCT
            and left.dtype in (torch.float32, torch.float64)
            and left.device.type == "cpu"
        )

    def decompose(op: Any, *args: Any, **settings: Any) -> Any:
        if op not in inductor_decompositions:
            return NotImplemented
        return inductor_decompositions[op](*args, **settings)

    def mm(left: torch.Tensor, right: torch.Tensor, *rest: Any, **settings: Any) -> Any:
        if not (rest or settings):
            if is_small(left, right):
                return (left.unsqueeze(2) * right.unsqueeze(0)).sum(1)
            if products.may_use_onednn(left, right):
                return products.mm(left, right)
        return decompose(product, left, right, *rest, **settings)

    def addmm(
        start: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *rest: Any, **settings: Any
    ) -> Any:
        if not (rest or settings):
            if is_small(left, right):
                return (left.unsqueeze(2) * right.unsqueeze(0)).sum(1) + start
            if products.may_use_onednn(left, right):
                return products.mm(left, right) + start
        return decompose(sum_and_product, start, left, right, *rest, **settings)

    return {product: mm, sum_and_product: addmm}


def _compile(graph: Any, examples: list[Any], mode: Any, options: CompileOptions) -> Call:
    backend = options.backend
    if backend is None or backend == "inductor":
        compiled: Call = compile_graph(graph, examples, mode, options.fallback_random)
        return compiled
    if backend == "eager":
        return lambda tensors: graph(*tensors)
    compile_with_backend = find_backend(backend) if isinstance(backend, str) else backend
    function: Any = compile_with_backend(graph, examples)
    return lambda tensors: function(*tensors)
