"""Steps that cannot be captured run eagerly, with the reason, and never with a stale constant."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._decomp import decompositions
from torch.nn import functional

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    Pair,
    batches,
    built,
    by_hand,
    captured,
    fallbacks,
    falls_back,
    mlp,
    network_of,
    run_both,
)

SCALE = 2.0
ITEMS: list[int] = []
CONFIG = types.SimpleNamespace(scale=2.0, sizes=[1, 2])


def _item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def _grow(x: torch.Tensor) -> torch.Tensor:
    ITEMS.append(1)
    return x * len(ITEMS)


def _numpy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(np.square(x.detach().numpy()))


def _drawn(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


_COUNT = itertools.count()


def _counted(x: torch.Tensor) -> torch.Tensor:
    return x * next(_COUNT)


CALLS = 0


def _global(x: torch.Tensor) -> torch.Tensor:
    global CALLS
    CALLS += 1
    return x * CALLS


class OfClass:
    calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        OfClass.calls += 1
        return x * OfClass.calls


def _clear() -> None:
    global CALLS, _COUNT
    ITEMS.clear()
    CALLS = OfClass.calls = 0
    _COUNT = itertools.count()
    random.seed(3)


def _in_place(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def _margin_loss(x: torch.Tensor) -> torch.Tensor:
    return functional.multilabel_margin_loss(x, torch.tensor([2, -1, 0]))


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (_item, "of test_reasons.py looks at the values"),
        (lambda x: x[x > 1].sum() * x, "of test_reasons.py looks at the values"),
        (_grow, ".fn global 'ITEMS'["),
        (_numpy, "of test_reasons.py"),
        (_global, ".fn global 'CALLS'"),
        (OfClass(), ".fn class OfClass.calls"),
        (_in_place, "writes into a tensor of the batch"),
        (_margin_loss, "decomposes multilabel_margin_loss to another function"),
        (_drawn, "advances Python's global generator"),
        (_counted, ".fn global '_COUNT', which a program would not do again"),
    ],
)
def test_runs_eagerly_with_the_reason(fn: Callable[..., Any], reason: str) -> None:
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    _clear()
    with falls_back(network, reason, "infer"):
        found = [network.run_step({"x": torch.arange(3.0) + place})["y"] for place in range(4)]
    _clear()
    expected = [fn(torch.arange(3.0) + place) for place in range(4)]
    torch.testing.assert_close(found, expected)


class Holding(TensorOp):
    """Multiplies by what it reads of something that it holds."""

    def __init__(self, held: Any, read: Callable[[Any], Any]) -> None:
        super().__init__(inputs="x", outputs="x")
        self.held = held
        self.read = read

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return data * self.read(self.held)


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_value_of_a_tensor_that_an_op_reads_is_never_old() -> None:
    held = torch.tensor([2.0])
    network = TorchNetwork([Holding(held, lambda one: float(one.numpy()[0]))], compile=QUICK)
    with network("infer", 1):
        for place in range(6):
            held.fill_(float(place // 3))
            assert network.run_step({"x": torch.ones(1)})["x"].item() == place // 3


def test_tensors_of_an_op_that_share_memory_run_eagerly() -> None:
    held = torch.ones(3)
    op = Holding((held, held[:1]), lambda pair: pair[0] + pair[1])
    network = TorchNetwork([op], compile=QUICK)
    with falls_back(network, "shares memory with another tensor", "infer"):
        for place in range(4):
            held.fill_(place)
            result = network.run_step({"x": torch.ones(3)})["x"]
            assert result.tolist() == [2 * place] * 3


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_list_that_was_replaced_while_something_else_differed() -> None:
    first, second = Holding([2.0], lambda one: one[0]), Holding(1.0, lambda one: one)
    network = TorchNetwork([first, second], compile=QUICK)

    def run() -> list[float]:
        with network("infer", 1):
            return [network.run_step({"x": torch.ones(1)})["x"].item() for _ in range(3)]

    assert run() == [2.0] * 3
    first.held, second.held = [2.0], 2.0
    assert run() == [4.0] * 3
    first.held[0], second.held = 5.0, 1.0
    assert run() == [5.0] * 3


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("what", ["forward", "hook"])
def test_what_is_put_into_all_modules_counts_in_the_next_step(what: str, monkeypatch: Any) -> None:
    module = nn.Tanh()
    network = TorchNetwork([LambdaOp(module, "x", "y")], compile=QUICK)
    x = torch.ones(1)
    with network("infer", 1), ExitStack() as stack:
        for place in range(6):
            if place == 3 and what == "forward":
                monkeypatch.setattr(nn.Tanh, "forward", lambda self, x: x * 3)
            if place == 3 and what == "hook":
                handle = nn.modules.module.register_module_forward_hook(
                    lambda module, inputs, output: output * 2
                )
                stack.callback(handle.remove)
            assert torch.equal(network.run_step({"x": x})["y"], module(x))
    hooks = ["there are hooks around the passes of all modules"]
    assert fallbacks(network) == (hooks if what == "hook" else [])


def test_a_tensor_that_an_op_holds_is_read_in_each_step() -> None:
    op = Holding(torch.tensor([1.0, 2.0]), lambda held: held)
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for place in range(8):
            if place == 3:
                op.held.mul_(3)
            if place == 5:
                op.held = torch.tensor([7.0, 7.0])
            result = network.run_step({"x": torch.ones(2)})["x"]
            assert torch.equal(result, op.held)
    assert captured(network) == 2


class Averaging(TensorOp):
    """Keeps a running average in a tensor, which it may replace in each step."""

    def __init__(self, replaces: bool) -> None:
        super().__init__(inputs="x", outputs="y")
        self.average = torch.zeros(2)
        self.replaces = replaces

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        if self.replaces:
            self.average = self.average * 0.5 + data * 0.5
        else:
            self.average.mul_(0.5).add_(data * 0.5)
        return data - self.average


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("replaces", [False, True])
def test_a_tensor_that_an_op_writes_to_or_replaces_goes_on(replaces: bool) -> None:
    op, average = Averaging(replaces), torch.zeros(2)
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for place in range(4):
            x = torch.tensor([place, 1.0])
            result = network.run_step({"x": x})["y"]
            average = average * 0.5 + x * 0.5
            torch.testing.assert_close(op.average, average)
            torch.testing.assert_close(result, x - average)
    (fallback,) = [one.fallback for one in network.traces]
    assert (".average" in str(fallback)) is replaces


@pytest.mark.filterwarnings("ignore:Steps of mode", "ignore:Trainable parameters")
@pytest.mark.parametrize("trains", [False, True])
def test_modules_that_are_no_models_of_the_network(trains: bool) -> None:
    def make(compile: Any) -> TorchNetwork:
        torch.manual_seed(0)
        extra = LambdaOp(nn.Linear(6, 6).requires_grad_(trains), "x", "x")
        return TorchNetwork([extra, *network_of(built()).ops], compile=compile)

    network = run_both(make, batches(5))
    assert bool(fallbacks(network)) is trains
    assert (network.ops[0].fn.weight.grad is not None) is trains


def test_globals_and_closures_are_compared() -> None:
    global SCALE
    cell = [1.0]

    class Local:
        factor = 1.0

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE * CONFIG.scale * cell[0] * CONFIG.sizes[-1] * Local.factor

    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    try:
        with network("infer", 1):
            for place in range(12):
                if place == 2:
                    SCALE = 5.0
                if place == 4:
                    CONFIG.scale = 7.0
                if place == 6:
                    cell[0] = 3.0
                if place == 8:
                    CONFIG.sizes.append(9)
                if place == 10:
                    Local.factor = 2.0
                result = network.run_step({"x": torch.ones(2)})["y"]
                torch.testing.assert_close(result, fn(torch.ones(2)))
    finally:
        SCALE, CONFIG.scale, CONFIG.sizes = 2.0, 2.0, [1, 2]
    assert captured(network) == 6
    reasons = [one.reason for one in network.traces[1:]]
    assert "SCALE" in reasons[0]
    assert "scale" in reasons[1]
    assert "sizes" in reasons[3]
    assert "closure variable 'Local'.factor" in reasons[4]


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_hooks_of_modules_and_parameters() -> None:
    pair = Pair(lambda: nn.Linear(6, 3))
    seen: list[int] = []
    handles: list[Any] = []
    with pair.network("train", 1):
        for place, batch in enumerate(batches(9)):
            if place == 3:
                handles = [
                    model.weight.register_hook(lambda gradient: gradient * 2)
                    for model, _ in pair.sides()
                ]
            if place == 6:
                for handle in handles:
                    handle.remove()
                pair.model.register_forward_hook(lambda *_: seen.append(1))
            pair.step(batch)
    pair.assert_same_weights()
    assert len(seen) == 3


class Moving(nn.Module):
    """Does something to itself in each forward pass."""

    def __init__(self, does: Callable[[Moving], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(()))
        self.does = [does]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.does[0](self)
        return self.layer(x) * (1 + self.count / 10) + torch.rand(3) / 10


def _replace_buffer(module: Moving) -> None:
    module.count = module.count + 1


def _replace_memory(module: Moving) -> None:
    module.layer.weight.data = module.layer.weight.data.clamp(-0.1, 0.1)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (_replace_buffer, "replaces the parameter or buffer 'count'"),
        (_replace_memory, "gives a parameter or a buffer other memory"),
    ],
)
@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_model_that_does_more_than_compute(does: Callable[[Moving], None], reason: str) -> None:
    network = run_both(
        lambda compile: network_of(built(lambda: Moving(does)), compile),
        batches(5),
        before=lambda place, network: torch.manual_seed(place),
    )
    assert reason in fallbacks(network)[0]


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_gradients_that_a_program_leaves_count() -> None:
    def before(place: int, network: TorchNetwork) -> None:
        if place == 4:
            network.models[0](torch.ones(2, 6)).sum().backward()

    network = run_both(lambda compile: network_of(built(), compile), batches(8), before)
    assert captured(network) == 1


class Sharing(nn.Module):
    """Has two parameters in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.again = nn.Parameter(self.layer.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + functional.linear(x * x, self.again)


def _scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Sharing, "two parameters, buffers or tensors of an optimizer's state share memory"),
        (_scripted, "RecursiveScriptModule is a scripted module"),
    ],
)
@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_models_whose_parameters_cannot_be_inputs(
    make: Callable[[], nn.Module], reason: str
) -> None:
    network = run_both(lambda compile: network_of(built(make), compile), batches(4))
    assert fallbacks(network) == [reason]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda optimizer: optimizer.register_step_pre_hook(lambda *_: None), "hooks"),
        (
            lambda optimizer: setattr(optimizer, "step", optimizer.step),
            "`step` of SGD was replaced",
        ),
        (
            lambda optimizer: setattr(optimizer, "zero_grad", lambda: None) or None,
            "has a gradient that no op uses",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_optimizers_that_do_more(change: Any, reason: str) -> None:
    model = built(lambda: nn.Linear(6, 3))
    network = network_of(model)
    with network("train", 1):
        for place, batch in enumerate(batches(5)):
            if place == 2:
                change(model.current_optimizer)
            network.run_step(batch)
    assert any(reason in one for one in fallbacks(network)), fallbacks(network)


@pytest.mark.filterwarnings("ignore:Steps of mode")
def test_a_compiler_that_fails_fails_no_step() -> None:
    def compiler(graph: Any, inputs: Any) -> Any:
        raise ValueError("no room")

    options = CompileOptions(backend=compiler)
    network = run_both(lambda compile: network_of(built(), compile), batches(4), compile=options)
    assert "failed with ValueError: no room" in fallbacks(network)[0]
    assert network.traces[0].compile_seconds > 0


def test_more_kinds_of_batches_than_are_asked_for() -> None:
    options = CompileOptions("eager", max_programs=2)
    op = LambdaOp(lambda x: x * 2, "x", "y")
    network = TorchNetwork([op], dynamic=False, compile=options)
    with falls_back(network, "more than 2 input signatures", "infer"):
        for size in (1, 2, 3, 4, 1, 2):
            for _ in range(2):
                result = network.run_step({"x": torch.ones(size)})["y"]
                assert torch.equal(result, torch.full((size,), 2.0))


def test_what_is_around_a_step_counts() -> None:
    model = built(lambda: nn.Linear(6, 3))
    network = TorchNetwork([ModelOp(model, "x", "pred")], compile=QUICK)
    (batch,) = batches(1)
    with network("infer", 1):
        for _ in range(3):
            assert network.run_step(batch)["pred"].dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                assert network.run_step(batch)["pred"].dtype == torch.bfloat16
        for _ in range(3):
            assert network.run_step(batch)["pred"].dtype == torch.float32
        seen: list[Any] = []

        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                seen.append(func)
                return func(*args, **(kwargs or {}))

        with Mode():
            network.run_step(batch)
    assert torch.nn.functional.linear in seen
    assert captured(network) == 2


@pytest.mark.parametrize(
    ("setting", "change", "other"),
    [
        (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        (torch.get_num_threads, torch.set_num_threads, 3),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
        (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
            True,
        ),
    ],
)
def test_changed_settings_of_torch(
    setting: Callable[[], Any], change: Callable[[Any], None], other: Any
) -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + torch.ones(2), "x", "y")], compile=QUICK)
    batch, before = {"x": torch.ones(2)}, setting()
    try:
        with network("infer", 1):
            for value in (before, other, before):
                change(value)
                for _ in range(3):
                    expected = batch["x"] + torch.ones(2)
                    assert torch.equal(network.run_step(batch)["y"], expected)
    finally:
        change(before)
    assert captured(network) == 2


def test_a_mode_that_is_there_from_the_first_step_on_is_told_of(
    request: pytest.FixtureRequest,
) -> None:
    network = TorchNetwork([LambdaOp(lambda x: x + torch.ones(2), "x", "y")], compile=QUICK)
    request.addfinalizer(lambda: torch.set_default_device(None))
    torch.set_default_device("cpu")
    with falls_back(network, "a torch mode, such as inference_mode", "infer"):
        for _ in range(3):
            assert torch.equal(network.run_step({"x": torch.ones(2)})["y"], torch.full((2,), 2.0))
    torch.set_default_device(None)
    with network("infer", 2):
        for _ in range(3):
            network.run_step({"x": torch.ones(2)})
    assert [one.fallback is None for one in network.traces] == [False, True]


def test_hooks_around_what_is_kept_for_backward_passes_are_called() -> None:
    pair = Pair()
    packed: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor

    with pair.network("train", 1):
        for place, batch in enumerate(batches(4)):
            if place == 2:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
                    pair.network.run_step(batch)
            else:
                pair.network.run_step(batch)
    assert len(packed) > 4
    assert captured(pair.network) == 1


def test_a_trace_leaves_nothing_behind() -> None:
    def replaced_in_traces() -> list[Any]:
        lstm = decompositions.select_one_layer_lstm_function  # type: ignore[attr-defined]
        return [torch.compile, torch.random.default_generator, lstm]

    before = replaced_in_traces()
    pair = Pair(lambda: mlp(0.5), OPTIMIZERS["adam"])
    (batch,) = batches(1)
    torch.manual_seed(5)
    with pair.network("train", 1):
        pair.network.run_step(batch)
    assert replaced_in_traces() == before
    states = torch.get_rng_state(), random.getstate()
    assert captured(pair.network) == 1
    torch.manual_seed(5)
    by_hand(pair.other, pair.optimizer, batch)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    pair.assert_same_weights()
    assert all(type(one) is nn.Parameter and one.grad is None for one in pair.model.parameters())
    assert "step" not in vars(pair.model.current_optimizer)
    assert pair.model.current_optimizer.param_groups[0]["params"] == list(pair.model.parameters())


def test_nothing_of_the_compiler_is_imported_without_it() -> None:
    # torch imports its compiler itself when an optimizer is made
    program = (
        "import sys, torch, fastnet\n"
        "from fastnet.op.tensorop.model import ModelOp\n"
        "model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn=None)\n"
        "network = fastnet.Network([ModelOp(model, 'x', 'y')])\n"
        "with network('infer', 1):\n"
        "    network.run_step({'x': torch.ones(3, 2)})\n"
        "names = 'torch._inductor', 'torch._dynamo', 'fastnet.network.torch.compiled'\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == ["[]"]
