"""Steps that cannot be captured run eagerly, with the reason, and never with a stale constant."""

from __future__ import annotations

import copy
import itertools
import random
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions, build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    batches,
    built,
    by_hand,
    captured,
    cross_entropy,
    falls_back,
    mlp,
    network_of,
)

SCALE = 2.0
ITEMS: list[int] = []
CONFIG = types.SimpleNamespace(scale=2.0, sizes=[1, 2])


class Scaled(TensorOp):
    """Multiplies by what it holds."""

    def __init__(self, factor: Any = 2.0) -> None:
        super().__init__(inputs="x", outputs="y")
        self.factor = factor

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        return data * self.factor


def _item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 3 else -x


def _grow(x: torch.Tensor) -> torch.Tensor:
    ITEMS.append(1)
    return x * len(ITEMS)


def _numpy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(np.square(x.detach().numpy()))


def _drawn(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def _drawn_by_numpy(x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())


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
    np.random.seed(3)


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


def _in_place(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


@contextmanager
def _warned_of(text: str) -> Iterator[None]:
    """Expect just one warning that steps run eagerly."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    (found,) = [str(one.message) for one in caught if "run eagerly" in str(one.message)]
    assert re.search(text, found), found


def fallbacks(network: TorchNetwork) -> list[str]:
    return [one.fallback for one in network.traces if one.fallback is not None]


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (_item, r"^LambdaOp \(op 0, .*\) in line \d+ of test_reasons.py looks at the values"),
        (_branch, r"^LambdaOp \(op 0, .*\) in line \d+ of test_reasons.py looks at the values"),
        (_grow, r"^running the ops changes LambdaOp \(op 0, .*\).fn global 'ITEMS'\[\d+\]"),
        (_numpy, r"line \d+ of test_reasons.py"),
        (_global, r"^running the ops changes LambdaOp .*fn global 'CALLS'"),
        (OfClass(), r"^running the ops changes LambdaOp .*fn class OfClass.calls"),
        (_nonzero, r"line \d+ of test_reasons.py looks at the values"),
        (_in_place, "writes into a tensor of the batch"),
    ],
)
def test_runs_op_by_op_with_the_reason(fn: Callable[..., Any], reason: str) -> None:
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    _clear()
    results = []
    with warnings.catch_warnings(record=True) as caught, network("infer", 1):
        warnings.simplefilter("always")
        for place in range(4):
            results.append(network.run_step({"x": torch.arange(3.0) + place})["y"])
    _clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [fn(torch.arange(3.0) + place) for place in range(4)]
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)
    (found,) = fallbacks(network)
    texts = [str(one.message) for one in caught if "compiled program" in str(one.message)]
    assert len(texts) == 1
    assert found in texts[0]
    assert re.search(reason, found), found


@pytest.mark.parametrize("fn", [_drawn, _drawn_by_numpy, _counted])
def test_numbers_that_differ_in_each_step_are_found_by_the_verification(fn: Any) -> None:
    _clear()
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    text = "gave other results than the same step run eagerly: 'y' differs by"
    with _warned_of(text), network("infer", 1):
        found = [network.run_step({"x": torch.ones(1)})["y"].item() for _ in range(5)]
    assert len(set(found)) == 5


def test_a_tensor_that_an_op_holds_is_read_in_each_step() -> None:
    op = Scaled(torch.tensor([1.0, 2.0]))
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for place in range(8):
            if place == 3:
                op.factor.mul_(3)
            if place == 5:
                op.factor = torch.tensor([7.0, 7.0])
            result = network.run_step({"x": torch.ones(2)})["y"]
            assert torch.equal(result, op.factor)
    assert captured(network) == 2


class Averaging(TensorOp):
    """Keeps a running average in a tensor."""

    def __init__(self) -> None:
        super().__init__(inputs="x", outputs="y")
        self.average = torch.zeros(2)

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        self.average.mul_(0.5).add_(data * 0.5)
        return data - self.average


def test_a_tensor_that_an_op_writes_to_goes_on() -> None:
    op, average = Averaging(), torch.zeros(2)
    network = TorchNetwork([op], compile=QUICK)
    with network("infer", 1):
        for place in range(6):
            x = torch.tensor([place, 1.0])
            result = network.run_step({"x": x})["y"]
            average = average * 0.5 + x * 0.5
            torch.testing.assert_close(op.average, average)
            torch.testing.assert_close(result, x - average)
    assert captured(network) == 1


class Assigning(Averaging):
    """Puts another tensor in the place of the one that it has."""

    def forward(self, data: torch.Tensor, state: Any) -> torch.Tensor:
        self.average = self.average * 0.5 + data * 0.5
        return data - self.average


def test_a_tensor_that_an_op_replaces_is_a_reason() -> None:
    op, average = Assigning(), torch.zeros(2)
    network = TorchNetwork([op], compile=QUICK)
    with _warned_of(r"changes Assigning .*\.average"), network("infer", 1):
        for place in range(4):
            x = torch.tensor([place, 1.0])
            result = network.run_step({"x": x})["y"]
            average = average * 0.5 + x * 0.5
            torch.testing.assert_close(op.average, average)
            torch.testing.assert_close(result, x - average)


def test_modules_that_are_no_models_of_the_network() -> None:
    for trains in (False, True):
        extra = nn.Linear(6, 6).requires_grad_(trains)
        model = built(lambda: nn.Linear(6, 3))
        other = copy.deepcopy(model)
        networks = [
            TorchNetwork(
                [
                    LambdaOp(extra, "x", "x"),
                    ModelOp(one, "x", "pred"),
                    LambdaOp(lambda p: p.square().mean(), "pred", "loss"),
                    UpdateOp(one, "loss"),
                ],
                compile=compile,
            )
            for one, compile in ((model, QUICK), (other, False))
        ]
        kept: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for network in networks:
                extra.zero_grad()
                with network("train", 1):
                    for batch in batches(5):
                        network.run_step({"x": batch["x"]})
                kept.append(extra.weight.grad)
        assert_same_weights(model, other)
        if trains:
            assert torch.equal(*kept)
            assert fallbacks(networks[0])
        else:
            assert kept == [None, None]
            assert captured(networks[0]) == 1


def test_globals_and_closures_are_compared() -> None:
    global SCALE
    cell = [1.0]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE * CONFIG.scale * cell[0] * CONFIG.sizes[-1]

    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=QUICK)
    try:
        with network("infer", 1):
            for place in range(30):
                if place == 5:
                    SCALE = 5.0
                if place == 10:
                    CONFIG.scale = 7.0
                if place == 15:
                    cell[0] = 3.0
                if place == 20:
                    CONFIG.sizes.append(9)
                result = network.run_step({"x": torch.ones(2)})["y"]
                torch.testing.assert_close(result, fn(torch.ones(2)))
    finally:
        SCALE, CONFIG.scale, CONFIG.sizes = 2.0, 2.0, [1, 2]
    assert captured(network) == 5
    reasons = [one.reason for one in network.traces[1:]]
    assert "SCALE" in reasons[0]
    assert "scale" in reasons[1]
    assert "sizes" in reasons[3]


def test_hooks_of_modules_and_parameters() -> None:
    model = built(lambda: nn.Linear(6, 3))
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["sgd"](other.parameters())
    network = network_of(model)
    seen: list[int] = []
    handles: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with network("train", 1):
            for place, batch in enumerate(batches(12)):
                if place == 4:
                    handles = [one.weight.register_hook(lambda g: g * 2) for one in (model, other)]
                if place == 8:
                    for handle in handles:
                        handle.remove()
                    model.register_forward_hook(lambda *_: seen.append(1))
                loss = network.run_step(batch)["loss"]
                torch.testing.assert_close(
                    loss, by_hand(other, optimizer, batch), rtol=1e-5, atol=1e-6
                )
    assert_same_weights(model, other)
    assert len(seen) == 4


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
def test_a_model_that_does_more_than_compute(does: Callable[[Moving], None], reason: str) -> None:
    model, other = built(lambda: Moving(does)), built(lambda: Moving(does))
    network = network_of(model)
    torch.manual_seed(3)
    with _warned_of(reason), network("train", 1):
        losses = [network.run_step(batch)["loss"] for batch in batches(6)]
    torch.manual_seed(3)
    for loss, batch in zip(losses, batches(6), strict=True):
        torch.testing.assert_close(loss, by_hand(other, other.optimizer, batch))
    assert_same_weights(model, other)


def test_functions_of_torch_that_a_program_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = built(), built()
    network = network_of(model)
    plain = nn.functional.relu
    monkeypatch.setattr(nn.functional, "relu", lambda x, inplace: plain(x) * 2)
    with _warned_of("gave other results"), network("train", 1):
        for batch in batches(8):
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, by_hand(other, other.optimizer, batch))


def test_what_a_class_of_optimizers_is_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = built(), built()
    network, eager = network_of(model), network_of(other, compile=False)
    plain = torch.optim.Optimizer.zero_grad

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        self.param_groups[0]["lr"] *= 2
        plain(self, set_to_none)

    told = _warned_of("the settings of an optimizer")
    with told, network("train", 1), eager("train", 1):
        for place, batch in enumerate(batches(8)):
            if place == 4:
                monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", zero_grad)
            loss = network.run_step(batch)["loss"]
            torch.testing.assert_close(loss, eager.run_step(batch)["loss"])
    assert_same_weights(model, other)


def test_gradients_that_a_program_leaves_count() -> None:
    model = built(lambda: nn.Linear(6, 3))
    other = copy.deepcopy(model)
    networks = [network_of(model), network_of(other, False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for network, own in zip(networks, (model, other), strict=True):
            with network("train", 1):
                for place, batch in enumerate(batches(8)):
                    if place == 4:
                        own(batch["x"]).sum().backward()
                    network.run_step(batch)
    assert_same_weights(model, other)


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
        (Sharing, "two parameters or buffers share memory"),
        (_scripted, "RecursiveScriptModule is a scripted module"),
    ],
)
def test_models_whose_parameters_cannot_be_inputs(
    make: Callable[[], nn.Module], reason: str
) -> None:
    model = built(make)
    other = built(make)
    network = network_of(model)
    with _warned_of(reason), network("train", 1):
        losses = [network.run_step(batch)["loss"] for batch in batches(4)]
    assert fallbacks(network) == [reason]
    for loss, batch in zip(losses, batches(4), strict=True):
        torch.testing.assert_close(loss, by_hand(other, other.optimizer, batch))
    assert_same_weights(model, other)


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
            "a parameter has a gradient that no op has left there",
        ),
        (
            lambda optimizer: optimizer.param_groups[0].update(lr=torch.tensor(0.1)),
            "`lr` of SGD is of type Tensor",
        ),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_optimizers_that_do_more(change: Any, reason: str, before: bool) -> None:
    model = built(lambda: nn.Linear(6, 3))
    network = network_of(model)
    with warnings.catch_warnings(record=True), network("train", 1):
        warnings.simplefilter("always")
        if before:
            change(model.current_optimizer)
        for place, batch in enumerate(batches(6)):
            if place == 3 and not before:
                change(model.current_optimizer)
            network.run_step(batch)
    assert any(reason in one for one in fallbacks(network)), fallbacks(network)


def test_a_compiler_that_fails_fails_no_step() -> None:
    def compiler(graph: Any, inputs: Any) -> Any:
        raise ValueError("no room")

    network = network_of(built(), CompileOptions(backend=compiler))
    with _warned_of("failed with ValueError: no room"), network("train", 1):
        losses = [network.run_step(batch)["loss"] for batch in batches(4)]
    eager = network_of(built(), False)
    with eager("train", 1):
        assert losses == [eager.run_step(batch)["loss"] for batch in batches(4)]
    assert network.traces[0].compile_seconds > 0


def test_a_function_can_be_the_backend() -> None:
    graphs: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append((graph, len(inputs)))
        return graph

    network = network_of(built(), CompileOptions(backend=compiler))
    with network("train", 1):
        for batch in batches(3):
            network.run_step(batch)
    assert captured(network) == len(graphs) == 1


def test_more_kinds_of_batches_than_are_asked_for() -> None:
    network = TorchNetwork(
        [LambdaOp(lambda x: x * 2, "x", "y")],
        compile=CompileOptions("eager", most_kinds=2, dynamic=False),
    )
    with _warned_of("more than 2 input signatures"), network("infer", 1):
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
    """Here they keep less of it than there is, which the gradients show."""
    models = []
    for compile in (False, QUICK):
        model = built()
        network = network_of(model, compile)
        packed: list[Any] = []

        def pack(tensor: torch.Tensor, packed: list[Any] = packed) -> torch.Tensor:
            packed.append(tensor.shape)
            if tensor.is_floating_point() and not isinstance(tensor, nn.Parameter):
                return tensor.bfloat16().float()
            return tensor

        with network("train", 1):
            for place, batch in enumerate(batches(6)):
                if place in (2, 3):
                    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
                        network.run_step(batch)
                else:
                    network.run_step(batch)
        assert len(packed) > 4
        models.append(model)
    assert_same_weights(*models)
    assert captured(network) >= 1


def test_a_trace_leaves_nothing_behind() -> None:
    model = built(lambda: mlp(0.5), OPTIMIZERS["adam"])
    network = network_of(model)
    other = built(lambda: mlp(0.5), OPTIMIZERS["adam"])
    eager = network_of(other, False)
    (batch,) = batches(1)
    with network("train", 1), eager("train", 1):
        torch.manual_seed(5)
        network.run_step(batch)
        state = torch.get_rng_state(), random.getstate()
        assert captured(network) == 1
        torch.manual_seed(5)
        eager.run_step(batch)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
    for name, tensor in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert all(type(one) is nn.Parameter for one in model.parameters())
    assert all(one.grad is None for one in model.parameters())
    assert "step" not in vars(model.current_optimizer)
    assert model.current_optimizer.param_groups[0]["params"] == list(model.parameters())


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


def test_a_loss_that_is_scaled_runs_eagerly() -> None:
    def make(compile: Any) -> TorchNetwork:
        torch.manual_seed(0)
        model = build(mlp, optimizer_fn=OPTIMIZERS["sgd"], mixed_precision="float16")
        loss = LambdaOp(lambda p, y: cross_entropy(p.float(), y), ["pred", "y"], "loss")
        ops = [ModelOp(model, "x", "pred"), loss, UpdateOp(model, "loss")]
        return TorchNetwork(ops, compile=compile)

    network, eager = make(QUICK), make(False)
    with falls_back(network, "the loss is scaled by a GradScaler"), eager("train", 1):
        for batch in batches(4):
            found, expected = (one.run_step(dict(batch))["loss"] for one in (network, eager))
            assert torch.equal(found, expected)
