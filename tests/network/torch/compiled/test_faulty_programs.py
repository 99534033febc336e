"""Faults that are put into compiled programs and captured graphs, which verification must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.verification import FAULTS, FaultyBackend
from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.network.torch.compiled import program_set
from fastnet.network.torch.compiled.captured import Capture
from fastnet.op.tensorop import LambdaOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    batches,
    built,
    fallbacks,
    mlp,
    network_of,
)

# Beside those of the benchmark, one that is hard to see, and one that is not.
ALL_FAULTS = {
    **FAULTS,
    "lost in one element": lambda before, after: torch.where(
        torch.arange(after.numel()).view_as(after) == 0, before, after
    ),
    "infinite": lambda before, after: after + float("inf"),
}
# Faults that change a step by more than this part must be found.
CLEAR = 0.05


def _error_of(run: Callable[[], Any]) -> str | None:
    try:
        run()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("optimizer", "dropout"), [("momentum", 0.0), ("adam", 0.3)])
def test_tensor_written_wrongly_by_program_is_found(optimizer: str, dropout: float) -> None:
    backend = FaultyBackend(ALL_FAULTS)
    model = built(lambda: mlp(dropout), OPTIMIZERS[optimizer])
    network = network_of(model, CompileOptions(backend, verify=1))
    data = iter(batches(1000))
    found, clear = 0, 0
    with network("train", 1):
        for _ in range(3):
            network.run_step(next(data))
        indices = list(backend.written)
        for fault in ALL_FAULTS:
            for index in indices:
                backend.fault, backend.index = fault, index
                error = _error_of(lambda: network.run_step(next(data)))
                is_clear = not backend.off <= CLEAR
                assert not (is_clear and error is None), f"{fault}: input {index}"
                assert error is None or "in the compiled program" in error
                found += error is not None
                clear += is_clear
                backend.fault = None
                network.run_step(next(data))
    # Five parameters, three buffers, and the optimizer's state.
    assert len(indices) >= 13
    assert found >= clear > 6 * len(indices)


def _last(capture: Capture, operation: str) -> Any:
    """Return the last node of an operation."""
    return [node for node in capture.graph.graph.nodes if operation in str(node.target)][-1]


def _leave_out_update(capture: Capture) -> None:
    capture.graph.graph.erase_node(_last(capture, "aten.sub_.Tensor"))


def _leave_out_buffer(capture: Capture) -> None:
    # The number of batches, and not a momentum, is the first that is added to.
    nodes = [one for one in capture.graph.graph.nodes if "aten.add_.Tensor" in str(one.target)]
    capture.graph.graph.erase_node(nodes[0])


def _update_twice(capture: Capture) -> None:
    node = _last(capture, "aten.sub_.Tensor")
    with capture.graph.graph.inserting_after(node):
        capture.graph.graph.call_function(node.target, node.args)


def _scale_gradient(capture: Capture) -> None:
    node = _last(capture, "aten.mm.default")
    with capture.graph.graph.inserting_after(node):
        scaled = capture.graph.graph.call_function(torch.ops.aten.mul.Tensor, (node, 0.9))
    node.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)


def _exchange_weights(capture: Capture) -> None:
    """Exchange the weight and the bias of the normalization, which have the same shape."""
    norm = _last(capture, "aten._native_batch_norm_legit.default")
    norm.args = (norm.args[0], norm.args[2], norm.args[1], *norm.args[3:])


def _exchange_updates(capture: Capture) -> None:
    updates = [one for one in capture.graph.graph.nodes if "aten.sub_" in str(one.target)][1:3]
    first, second = (one.args for one in updates)
    updates[0].args, updates[1].args = (second[0], first[1]), (first[0], second[1])
    # Both updates now come after all that they use.
    updates[1].append(updates[0])


def _constant_rate(capture: Capture) -> None:
    """Let the first update use a constant in place of the learning rate."""
    update = next(one for one in capture.graph.graph.nodes if "aten.sub_" in str(one.target))
    product = update.args[1]
    product.args = (product.args[0], 0.01)


def _leave_out_dropout(capture: Capture) -> None:
    node = _last(capture, "aten.native_dropout.default")
    node.args = (node.args[0], 0.0, True)


def _freeze_dropout(capture: Capture) -> None:
    """Put a constant mask in the place of a random one."""
    node = _last(capture, "aten.native_dropout.default")
    graph = capture.graph.graph
    mask = torch.arange(node.args[0].meta["val"].numel()).view(node.args[0].meta["val"].shape) % 3
    capture.graph.register_buffer("mask", mask > 0, persistent=False)
    values, kept = sorted(node.users, key=lambda user: user.args[1])
    with graph.inserting_before(node):
        constant = graph.get_attr("mask")
        product = graph.call_function(torch.ops.aten.mul.Tensor, (node.args[0], constant))
        scaled = graph.call_function(torch.ops.aten.div.Tensor, (product, 0.7))
    values.replace_all_uses_with(scaled)
    kept.replace_all_uses_with(constant)
    for one in (values, kept, node):
        graph.erase_node(one)


def _other_result(capture: Capture) -> None:
    node = _last(capture, "aten.addmm.default")
    output = next(one for one in capture.graph.graph.nodes if one.op == "output")
    # Some versions of torch detach a result in the graph.
    result = next(one for one in output.all_input_nodes if node in (one, *one.all_input_nodes))
    with capture.graph.graph.inserting_after(result):
        wrong = capture.graph.graph.call_function(torch.ops.aten.mul.Tensor, (result, 1.01))
    output.replace_input_with(result, wrong)


EDITS = [
    _leave_out_update,
    _leave_out_buffer,
    _update_twice,
    _scale_gradient,
    _exchange_weights,
    _exchange_updates,
    _constant_rate,
    _other_result,
]
DROPOUT_EDITS = [*EDITS, _leave_out_dropout, _freeze_dropout]


def _unchanged(capture: Capture) -> None:
    """Edit nothing."""


@pytest.mark.parametrize(
    ("edit", "dropout"),
    [
        *((edit, 0.0) for edit in (*EDITS, _unchanged)),
        *((edit, 0.3) for edit in (*DROPOUT_EDITS, _unchanged)),
    ],
)
@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_fault_in_captured_graph_is_found(
    monkeypatch: pytest.MonkeyPatch, edit: Callable[[Capture], None], dropout: float
) -> None:
    original = program_set.capture

    def capture(*args: Any, **settings: Any) -> Capture:
        captured = original(*args, **settings)
        edit(captured)
        captured.graph.recompile()
        return captured

    monkeypatch.setattr(program_set, "capture", capture)
    network = network_of(built(lambda: mlp(dropout), OPTIMIZERS["momentum"]))
    with torch.no_grad():  # The norm's weight and bias must differ to be exchanged.
        network.models[0][1].bias.uniform_(-0.5, 0.5)
    with network("train", 1):
        for batch in batches(4):
            network.run_step(batch)
    (record,) = [one for one in network.traces if one.fallback is not None] or [None]
    if edit is _unchanged:
        assert record is None
    else:
        assert record is not None
        assert "the captured graph" in record.fallback or "eager step alone" in record.fallback


def test_nan_of_a_program_is_found_beside_an_infinite_mask() -> None:
    causal = torch.full((3, 3), float("-inf")).triu(1)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T + causal).softmax(-1) @ x

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*tensors: Any) -> Any:
            (y,) = graph(*tensors)
            y[1, 1] = float("nan")
            return [y]

        return run

    network = TorchNetwork([LambdaOp(attend, "x", "y")], compile=CompileOptions(backend=backend))
    with network("infer", 1):
        for _ in range(4):
            x = torch.randn(3, 3)
            torch.testing.assert_close(network.run_step({"x": x})["y"], attend(x))
    assert "'y' differs in 0.11 of its elements in the compiled program" in fallbacks(network)[0]


def test_fault_at_other_lengths_than_the_first_is_found() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        def run(size: int, *tensors: Any) -> Any:
            return (
                graph(size, *tensors) if size == 4 else [one * 2 for one in graph(size, *tensors)]
            )

        return run

    options = CompileOptions(backend=backend)
    network = TorchNetwork([LambdaOp(torch.exp, "x", "y")], dynamic=True, compile=options)
    with network("infer", 1):
        for size in (4, 4, 4, 6, 5, 4):
            x = torch.randn(size)
            torch.testing.assert_close(network.run_step({"x": x})["y"], x.exp())
    assert "each size is compiled by itself" in network.traces[-1].reason
