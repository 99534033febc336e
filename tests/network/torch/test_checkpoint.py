"""Checkpoints of torch runs: exact resume, atomic files, and failed loads that change nothing."""

from __future__ import annotations

import copy
import errno
import os
import random
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

import fastnet
from fastnet.backend import save_model
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import LossOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.conftest import *  # noqa: F403
from tests.network.programs import built, mlp, supervised
from tests.subprocesses import run_python

STEPS, MERGED = 14, 3


def model_fn() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, 0.05, amsgrad=True)


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 0.02, momentum=0.9)


class Squares(LossOp):
    held: Any = None

    def forward(self, data: Any, state: Any) -> Any:
        return ((data[0] - data[1]) ** 2).mean()


class Rising(TensorOp):
    """Multiplies by a growing number, and adds random numbers of three libraries."""

    def __init__(self) -> None:
        super().__init__(inputs="x", outputs="x")
        self.factor = torch.tensor(1.0)
        self.steps = 0

    def forward(self, data: Any, state: Any) -> Any:
        self.steps += 1
        self.factor = self.factor * 1.01
        return data * self.factor + rise()

    def state_dict(self) -> Any:
        return {"factor": self.factor, "steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        self.factor = state["factor"]
        if state["steps"] < 0:
            raise RuntimeError("the state is half loaded")
        self.steps = state["steps"]


def rise() -> float:
    return random.random() + np.random.random_sample() + float(torch.rand(()))


class Run:
    """A run with two scheduled optimizers, learning rate schedules and merged gradients."""

    def __init__(self, seed: int, wrap: Callable[[Any], Any] = lambda model: model) -> None:
        seed_all(seed)
        self.model = fastnet.build(
            lambda: wrap(model_fn()), EpochScheduler({1: adam, 2: momentum}), model_name="net"
        )
        self.rising = Rising()
        self.update = UpdateOp(self.model, "loss", merge_grad=MERGED)
        loss = Squares(("y", "t"), "loss")
        loss.held = [torch.Generator().manual_seed(seed)]
        self.network = fastnet.Network(
            [
                EpochScheduler({1: self.rising}),
                ModelOp(self.model, "x", "y"),
                loss,
                self.update,
            ]
        )
        self.rates = [
            torch.optim.lr_scheduler.MultiStepLR(one, [1, 2], gamma=0.5)
            for one in self.model.optimizer.get_all_values()
        ]
        self.stateful = {f"rate {place}": one for place, one in enumerate(self.rates)}

    def go(self, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            with self.network(mode="train", epoch=epoch_of(step)):
                losses.append(float(self.network.run_step(batch(step))["loss"]))
            if step % 2:
                self.rates[epoch_of(step) - 1].step()
        return losses

    def save(self, path: Any, **settings: Any) -> str:
        return fastnet.save_checkpoint(path, self.network, stateful=self.stateful, **settings)

    def load(self, path: Any) -> Any:
        return fastnet.load_checkpoint(path, self.network, stateful=self.stateful)

    def everything(self) -> Any:
        """Copy the state."""
        return copy.deepcopy(
            {
                "weights": dict(self.model.state_dict()),
                "optimizers": [one.state_dict() for one in self.model.optimizer.get_all_values()],
                "current": id(self.model.current_optimizer),
                "rates": [one.state_dict() for one in self.rates],
                "rising": self.rising.state_dict(),
                "update": self.update.state_dict(),
                "trainable": [one.requires_grad for one in self.model.parameters()],
                "held": self.network.ops[2].held[0].get_state(),
                "torch": torch.get_rng_state(),
                "python": random.getstate(),
                "numpy": np.random.get_state(legacy=False),
            }
        )


def hand_written_loop(seed: int, steps: int = STEPS) -> tuple[list[float], list[torch.Tensor]]:
    """The same run as an uninterrupted hand-written loop."""
    seed_all(seed)
    model = model_fn()
    optimizers = [make(model.parameters()) for make in (adam, momentum)]
    rates = [torch.optim.lr_scheduler.MultiStepLR(one, [1, 2], gamma=0.5) for one in optimizers]
    parameters = list(model.parameters())
    factor, sums, losses = torch.tensor(1.0), [torch.zeros_like(one) for one in parameters], []
    for step in range(steps):
        factor = factor * 1.01
        data = batch(step)
        loss = ((model(data["x"] * factor + rise()) - data["t"]) ** 2).mean()
        gradients = torch.autograd.grad(loss, parameters)
        sums = [one + two for one, two in zip(sums, gradients, strict=True)]
        if step % MERGED == MERGED - 1:
            for parameter, total in zip(parameters, sums, strict=True):
                parameter.grad = total / MERGED
            optimizers[epoch_of(step) - 1].step()
            sums = [torch.zeros_like(one) for one in parameters]
        if step % 2:
            rates[epoch_of(step) - 1].step()
        losses.append(loss.item())
    return losses, [*model.state_dict().values()]


def epoch_of(step: int) -> int:
    return 1 + step // 7


def batch(step: int) -> dict[str, Any]:
    source = torch.Generator().manual_seed(step)
    return {
        "x": torch.randn(8, 6, generator=source),
        "t": torch.randn(8, 3, generator=source),
    }


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


@pytest.fixture(scope="module")
def uninterrupted() -> Any:
    return hand_written_loop(0)


def assert_resumes(
    make: Callable[[], Any], folder: Path, data: Callable[[int], Any] = batch
) -> list[TorchNetwork]:
    """Save a network during training, and continue with a second one that loads the file."""

    def run(network: TorchNetwork, first: int, last: int) -> list[float]:
        with network("train", 1):
            return [float(network.run_step(data(step))["loss"]) for step in range(first, last)]

    networks = []
    for seed in (0, 1):
        seed_all(seed)
        networks.append(make())
    network, resumed = networks
    run(network, 0, 8)
    path = fastnet.save_checkpoint(folder / "run.ckpt", network)
    losses = run(network, 8, 14)
    assert fastnet.load_checkpoint(path, resumed) == (0, 0, {})
    assert run(resumed, 8, 14) == losses
    for model, other in zip(network.models, resumed.models, strict=True):
        assert same(dict(other.state_dict()), dict(model.state_dict()))
        assert same(optimizer_state(other), optimizer_state(model))
    return networks


def optimizer_state(model: Any) -> Any:
    optimizer = model.current_optimizer
    return None if optimizer is None else dict(optimizer.state_dict())


class TestGoingOn:
    @pytest.mark.filterwarnings("ignore:Detected call of")
    @pytest.mark.parametrize("before", [1, 3, 8])
    def test_as_if_it_had_not_stopped(
        self, tmp_path: Path, uninterrupted: Any, before: int
    ) -> None:
        losses, weights = uninterrupted
        first = Run(0)
        early = first.go(0, before)
        path = first.save(tmp_path / "run.ckpt", epoch=epoch_of(before), step=before)
        first.go(before, STEPS)  # a run that goes on changes nothing in the file
        second = Run(1)
        assert second.load(path) == (epoch_of(before), before, {})
        assert early + second.go(before, STEPS) == losses
        assert same([*second.model.state_dict().values()], weights)

    @pytest.mark.filterwarnings("ignore:Detected call of")
    def test_in_another_process(self, tmp_path: Path, uninterrupted: Any) -> None:
        run = Run(0)
        early = run.go(0, 8)
        path = run.save(tmp_path / "run.ckpt", step=8)
        code = (
            "import sys; from tests.network.torch.test_checkpoint import *\n"
            "run = Run(5); print(run.go(run.load(sys.argv[1]).step, STEPS))"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, path],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        )
        assert early + eval(done.stdout) == uninterrupted[0]

    def test_half_precision_with_a_scaler(self, tmp_path: Path) -> None:
        def make() -> Any:
            model = fastnet.build(model_fn, adam, model_name="net", mixed_precision="float16")
            ops = [ModelOp(model, "x", "y"), Squares(("y", "t"), "loss"), UpdateOp(model, "loss")]
            return fastnet.Network(ops)

        networks = assert_resumes(make, tmp_path)
        scales = [one.models[0].current_optimizer.scaler.state_dict() for one in networks]
        assert scales[0] == scales[1]
        assert scales[0]["_growth_tracker"] > 0

    def test_one_optimizer_over_two_models(self, tmp_path: Path) -> None:
        def make() -> Any:
            body = fastnet.build(model_fn, None, model_name="body")
            head = fastnet.build(
                lambda: nn.Linear(3, 3),
                lambda parameters: adam([*body.parameters(), *parameters]),
                model_name="head",
            )
            update = UpdateOp(head, "loss", clip_norm=0.1, merge_grad=MERGED)
            ops = [ModelOp(body, "x", "x"), ModelOp(head, "x", "y"), Squares(("y", "t"), "loss")]
            return fastnet.Network([*ops, update])

        assert_resumes(make, tmp_path)

    def test_merged_sparse_gradients(self, tmp_path: Path) -> None:
        def make() -> Any:
            model = fastnet.build(
                lambda: nn.Embedding(5, 3, sparse=True),
                lambda parameters: torch.optim.SparseAdam(parameters, 0.1),
                model_name="words",
            )
            ops = [ModelOp(model, "x", "y"), Squares(("y", "t"), "loss")]
            return fastnet.Network([*ops, UpdateOp(model, "loss", merge_grad=MERGED)])

        def words(step: int) -> dict[str, Any]:
            # Words that occur several times are summed in the order of the entries.
            return {**batch(step), "x": torch.tensor([step % 5, 0, 1, 0, 1, 0, 2, 2])}

        assert_resumes(make, tmp_path, words)

    def test_unfrozen_layers(self, tmp_path: Path) -> None:
        """Like a hand-written loop that unfreezes the first layer in its second epoch."""

        def make(seed: int) -> tuple[TorchNetwork, Any]:
            seed_all(seed)
            model = fastnet.build(model_fn, momentum, model_name="net")
            model[0].requires_grad_(False)
            ops = [ModelOp(model, "x", "y"), Squares(("y", "t"), "loss")]
            return TorchNetwork([*ops, UpdateOp(model, "loss", merge_grad=2)]), model

        def run(network: TorchNetwork, first: int, last: int) -> None:
            with network("train"):
                for step in range(first, last):
                    network.run_step(batch(step))

        network, model = make(0)
        run(network, 0, 4)
        model[0].requires_grad_(True)
        model[3].bias.requires_grad_(False)
        run(network, 4, 7)
        path = fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
        resumed, other = make(1)
        fastnet.load_checkpoint(path, resumed)
        run(resumed, 7, 10)

        seed_all(0)
        twin = model_fn()
        twin[0].requires_grad_(False)
        optimizer = momentum(twin.parameters())
        for step in range(10):
            if step == 4:
                twin[0].requires_grad_(True)
                twin[3].bias.requires_grad_(False)
                twin[3].bias.grad = None
            data = batch(step)
            (((twin(data["x"]) - data["t"]) ** 2).mean() / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        assert same(dict(other.state_dict()), dict(twin.state_dict()))
        flags = [one.requires_grad for one in twin.parameters()]
        assert [one.requires_grad for one in other.parameters()] == flags

    @pytest.mark.parametrize("merge", [1, 2])
    def test_lazy_layers(self, tmp_path: Path, merge: int) -> None:
        def make() -> TorchNetwork:
            layers = lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 3))  # noqa: E731
            model = fastnet.build(layers, adam, model_name="net")
            ops = [ModelOp(model, "x", "y"), Squares(("y", "t"), "loss")]
            return TorchNetwork([*ops, UpdateOp(model, "loss", merge_grad=merge)])

        with pytest.raises(ValueError, match=r"LazyLinear.*cannot be saved without them"):
            fastnet.save_checkpoint(tmp_path / "run.ckpt", make())
        assert_resumes(make, tmp_path)

    def test_lazy_layers_in_another_process(self, tmp_path: Path) -> None:
        """They get their shapes from the file."""
        program = """
import sys
import torch
from torch import nn
import fastnet
from tests.network.torch.test_checkpoint import ModelOp, Squares, UpdateOp, adam, batch, seed_all

way, path = sys.argv[1:]
seed_all(len(way))
layers = lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 3))
model = fastnet.build(layers, adam, model_name="net")
ops = [ModelOp(model, "x", "y"), Squares(("y", "t"), "loss"), UpdateOp(model, "loss")]
network = fastnet.Network(ops)
if way == "resume":
    fastnet.load_checkpoint(path, network)
with network("train"):
    for step in range(5) if way == "save" else range(5, 9):
        network.run_step(batch(step))
    if way == "save":
        fastnet.save_checkpoint(path, network)
        for step in range(5, 9):
            network.run_step(batch(step))
print([value.tolist() for value in model.state_dict().values()])
"""
        done = [
            run_python("-W", "ignore", "-c", program, way, tmp_path / "run.ckpt")
            for way in ("save", "resume")
        ]
        assert [process.returncode for process in done] == [0, 0], done[-1].stderr
        assert done[0].stdout == done[1].stdout

    def test_generators_that_ops_and_modules_hold(self, tmp_path: Path) -> None:
        class Noisy(nn.Linear):
            def __init__(self) -> None:
                super().__init__(6, 3)
                self.generator = torch.Generator().manual_seed(torch.initial_seed())

            def forward(self, x: Any) -> Any:
                return super().forward(x) + torch.rand((), generator=self.generator)

        class Source:
            def __init__(self) -> None:
                self.numbers = np.random.default_rng(np.random.randint(9))

        class Draws(TensorOp):
            def __init__(self) -> None:
                super().__init__(inputs="x", outputs="x")
                self.source = Source()
                self.more = {"some": [random.Random(random.random())]}
                self.legacy = np.random.RandomState(np.random.randint(9))

            def forward(self, data: Any, state: Any) -> Any:
                more = self.more["some"][0].random() + self.legacy.random_sample()
                return data + self.source.numbers.random() + more

        def make() -> TorchNetwork:
            model = fastnet.build(Noisy, adam, model_name="net")
            generator = torch.Generator().manual_seed(torch.initial_seed())
            add = LambdaOp(lambda x: x + torch.rand((), generator=generator), "x", "x")
            ops = [Draws(), add, ModelOp(model, "x", "y"), Squares(("y", "t"), "loss")]
            return TorchNetwork([*ops, UpdateOp(model, "loss")])

        assert_resumes(make, tmp_path)

    @pytest.mark.parametrize("saved", ["plain", "spread", "compiled"])
    @pytest.mark.parametrize("loaded", ["plain", "spread", "compiled"])
    def test_models_may_be_wrapped_otherwise(self, tmp_path: Path, saved: str, loaded: str) -> None:
        wraps = {
            "plain": lambda model: model,
            "spread": nn.DataParallel,
            "compiled": lambda model: torch.compile(model, backend="eager"),
        }
        run, other = Run(0, wraps[saved]), Run(1, wraps[loaded])
        other.load(run.save(tmp_path / "run.ckpt"))
        assert same([*other.model.state_dict().values()], [*run.model.state_dict().values()])


def set_at(place: str, value: Any) -> Callable[[Any], None]:
    """Return a function that changes one value of a checkpoint's content."""

    def change(content: Any) -> None:
        *way, last = [
            int(part) if part.isdecimal() else part.replace(";", ".") for part in place.split(".")
        ]
        for part in way:
            content = content[part]
        content[last] = value

    return change


STATE = "models.net.optimizers.0.state"
UNFIT = {
    "missing weights": (set_at("models.net.weights", {}), "Missing key(s) in state_dict"),
    "a shape": (set_at("models.net.weights.3;bias", torch.ones(4)), "size mismatch for 3.bias"),
    "a dtype": (
        set_at("models.net.weights.3;bias", torch.ones(3, dtype=torch.float64)),
        "'3.bias' has the dtype torch.float64, where the model's is torch.float32",
    ),
    "another order of equal parameters": (
        set_at("models.net.optimizers.0.names.3", "2.weight"),
        "its parameter 3 is '2.weight', where the model's is '2.bias'",
    ),
    "an optimizer's class": (
        set_at("models.net.optimizers.1.optimizer", "Adam"),
        "it was saved by Adam",
    ),
    "a parameter": (set_at(f"{STATE}.9", {}), "does not fit the optimizer, Adam: it has no 9"),
    "no optimizers": (
        set_at("models.net.optimizers", []),
        "the number of optimizers of model 'net' was 0 when it was saved, but is 2",
    ),
    "the class of an op": (set_at("states.ops/0/0.class", "Falling"), "['ops/0/0 (Falling)']"),
    "an op's own error": (
        set_at("states.ops/0/0.state.steps", -1),
        "ops/0/0 (Rising): RuntimeError: the state is half loaded",
    ),
    "Python's numbers": (set_at("random.python", (3, (1, 2), None)), "does not fit the network"),
    "numpy's numbers": (set_at("random.numpy.state.pos", 10**9), "numpy's random numbers"),
    "numpy's generator": (
        set_at("random.numpy.bit_generator", "other"),
        "does not fit the network",
    ),
    "a version": (set_at("version", 1), "its format is version 1, not 2"),
    "a trainable parameter": (
        set_at("models.net.trainable", {"0.weight": True}),
        "the state of model 'net' has other parameters than the model",
    ),
    "the kind of a generator": (
        set_at("random.generators.ops/2;held[0]", ["Random", None]),
        "ops/2.held[0] is a Random, where that of the program is a Generator",
    ),
    "models": (set_at("models", {}), "has models named []"),
}


class Counter:
    """Remembers a number, or raises an error when it is loaded."""

    count = 0
    error: BaseException | None = None

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.error is not None:
            raise self.error
        self.count = state["count"]


class Interrupting(Counter):
    error = KeyboardInterrupt()


@pytest.mark.parametrize(
    ("saved", "given"), [((), ("s",)), (("s",), ()), (("s",), ("r",))], ids=str
)
def test_other_objects_than_were_saved(tmp_path: Path, saved: Any, given: Any) -> None:
    network = TorchNetwork(supervised(built(mlp, model_name="net")))
    path = fastnet.save_checkpoint(
        tmp_path / "run.ckpt", network, stateful={name: Counter() for name in saved}
    )
    with pytest.raises(ValueError, match="does not fit the network") as caught:
        fastnet.load_checkpoint(path, network, stateful={name: Counter() for name in given})
    for owner, names in (("file", saved), ("program", given)):
        listed = [f"stateful/{name} (Counter)" for name in names] or "none"
        assert f"states that only the {owner} has: {listed}" in str(caught.value)


class Plain(torch.optim.Optimizer):
    """SGD with momentum in float64, and values that belong to no parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        shared = self.state["shared"]
        shared["steps"] = shared.get("steps", 0) + 1
        shared["rate"] = shared.get("rate", torch.ones((), dtype=torch.float64)) * 0.9
        self.state["name"] = "plain"
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["sum"] = torch.zeros_like(parameter, dtype=torch.float64)
                state["more"] = {"counts": [torch.tensor(0)], "name": "more", "at": np.zeros(2)}
            state["step"] += 1
            state["more"]["counts"][0] += 1
            state["more"]["at"] += 0.1
            state["sum"].mul_(0.9).add_(parameter.grad.double() / 3)
            parameter.sub_((state["sum"] * shared["rate"] * 0.1).to(parameter.dtype))


class TestOptimizersOfUsers:
    def make(self) -> Any:
        model = fastnet.build(lambda: model_fn().bfloat16(), Plain, model_name="net")
        ops = [ModelOp(model, "x", "y"), Squares(("y", "t"), "loss"), UpdateOp(model, "loss")]
        return fastnet.Network(ops)

    def data(self, step: int) -> dict[str, Any]:
        return {key: one.bfloat16() for key, one in batch(step).items()}

    def test_state_keeps_its_types(self, tmp_path: Path) -> None:
        """torch itself converts all state of a parameter to the dtype of the parameter."""
        _, resumed = assert_resumes(self.make, tmp_path, self.data)
        state = resumed.models[0].current_optimizer.state
        assert state["shared"]["rate"].dtype == torch.float64

    def test_state_that_cannot_be_saved(self, tmp_path: Path) -> None:
        network = self.make()
        network.transform(self.data(0), "train")
        (model,) = network.models
        with pytest.raises(ValueError, match=r"has objects of .*numpy.* without executing code"):
            save_model(model, tmp_path, save_optimizer=True)
        assert os.listdir(tmp_path) == []
        model.current_optimizer.state[model[0].weight] = 3
        with pytest.raises(TypeError, match="Plain keeps a int as the state of parameter 0"):
            fastnet.save_checkpoint(tmp_path / "run.ckpt", network)


class TestFailing:
    """A load that fails changes nothing, and the run can go on."""

    def refused(self, run: Run, path: Any, text: str, load: Any = None) -> None:
        before = run.everything()
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            (load or run.load)(path)
        assert text in str(caught.value)
        assert same(run.everything(), before)

    @pytest.fixture
    def run(self) -> Run:
        run = Run(1)
        run.go(0, 5)
        return run

    @pytest.mark.filterwarnings("ignore:Detected call of")
    @pytest.mark.parametrize("kind", UNFIT)
    def test_unfit_content(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, kind: str
    ) -> None:
        change, text = UNFIT[kind]
        other = Run(0)
        other.go(0, 13)
        import fastnet.network.checkpoint as module

        parts: dict[str, Any] = {}
        encode = module.encode

        def collect(value: Any, part: str, blocks: Any, give: Any) -> Any:
            parts[part] = copy.deepcopy(value)
            return encode(value, part, blocks, give)

        monkeypatch.setattr(module, "encode", collect)
        other.save(tmp_path / "run.ckpt")
        change(parts)
        monkeypatch.setattr(
            module, "encode", lambda value, part, *rest: encode(parts[part], part, *rest)
        )
        path = other.save(tmp_path / "run.ckpt")
        seed_all(2)
        self.refused(run, path, text)
        run.go(5, 8)

    def test_no_file(self, tmp_path: Path, run: Run) -> None:
        path = str(tmp_path / "none")
        with pytest.raises(FileNotFoundError, match="There is no checkpoint") as caught:
            run.load(path)
        assert path in str(caught.value)

    @pytest.mark.parametrize("path", ["", b"run.ckpt", None, 3, "{}", "{}/"])
    def test_no_path(self, tmp_path: Path, run: Run, path: Any) -> None:
        path = path.format(tmp_path) if isinstance(path, str) else path
        for use in (run.load, run.save):
            with pytest.raises(ValueError, match=r"path of a checkpoint .* (folder|of type)"):
                use(path)
        assert os.listdir(tmp_path) == []

    def test_an_interrupt(self, tmp_path: Path, run: Run) -> None:
        other = Run(0)
        other.go(0, 13)
        other.stateful["last"] = run.stateful["last"] = Interrupting()
        path = other.save(tmp_path / "run.ckpt")
        before = run.everything()
        with pytest.raises(KeyboardInterrupt):
            run.load(path)
        assert same(run.everything(), before)

    @pytest.mark.parametrize(
        ("name", "given", "text"),
        [
            ("epoch", -1, "epoch is an int of at least 0, not -1"),
            ("step", "3", "step is an int of at least 0, not '3'"),
            ("values", ["a"], "save_checkpoint's values is a dict"),
            ("values", {"a": object()}, "'values/a' is of the type object"),
            ("values", {"a": 1j}, "'values/a' is of the type complex, .* real numbers"),
            ("stateful", Counter(), "save_checkpoint's stateful is a dict"),
            (
                "stateful",
                {"g": torch.Generator()},
                r"Generator as stateful/g, .* get_state\(\), in",
            ),
            ("stateful", {"c": Counter}, "the class Counter as stateful/c"),
            ("stateful", {"a": 3}, "int as stateful/a, .* Put plain values"),
        ],
    )
    def test_what_cannot_be_saved(
        self, tmp_path: Path, run: Run, name: str, given: Any, text: str
    ) -> None:
        kind = TypeError if "of the type" in text else ValueError
        with pytest.raises(kind, match=text):
            fastnet.save_checkpoint(tmp_path / "run.ckpt", run.network, **{name: given})
        assert os.listdir(tmp_path) == []

    def test_nothing_is_executed(self, tmp_path: Path, run: Run) -> None:
        class Hostile:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "marker"),)

        path = tmp_path / "run.ckpt"
        torch.save({"models": Hostile()}, path)
        self.refused(run, path, "is a file of torch or Keras")
        assert not (tmp_path / "marker").exists()

    @pytest.mark.parametrize("network", [None, "net", [1], nn.Linear(1, 1)], ids=str)
    def test_no_network(self, tmp_path: Path, network: Any) -> None:
        for use in (fastnet.save_checkpoint, fastnet.load_checkpoint):
            with pytest.raises(ValueError, match=f"{use.__name__} takes a Network, not "):
                use(tmp_path / "run.ckpt", network)


class TestWriting:
    """The file is the old one or the new one, wherever writing ends."""

    def in_a_child(self, save: Callable[[], object], most: int, beyond: Any) -> int:
        """Save in a child that may write `most` bytes; return its status."""
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        try:
            signal.signal(signal.SIGXFSZ, beyond)  # By default it kills the child.
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            save()
        except OSError as error:
            os._exit(error.errno)
        finally:
            os._exit(3)

    def test_a_full_disk(self, tmp_path: Path) -> None:
        """The old file stays, and the error is the system's."""
        run = Run(0)
        path = run.save(tmp_path / "run.ckpt")
        save_model(run.model, tmp_path)
        old = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

        for save in (lambda: run.save(path), lambda: save_model(run.model, tmp_path)):
            status = self.in_a_child(save, 900, signal.SIG_IGN)
            assert os.waitstatus_to_exitcode(status) == errno.EFBIG
        assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == old

    def test_killed_at_many_places(self, tmp_path: Path) -> None:
        run = Run(0)
        path = run.save(tmp_path / "run.ckpt", step=1)
        old = Path(path).read_bytes()
        run.go(0, 2)

        places = [*range(10), *range(10, len(old), len(old) // 30)]
        for most in places:
            status = self.in_a_child(lambda: run.save(path, step=2), most, signal.SIG_DFL)
            assert os.WTERMSIG(status) == signal.SIGXFSZ
            assert Path(path).read_bytes() == old
        assert Run(1).load(path).step == 1


def test_other_generators_than_were_saved(tmp_path: Path) -> None:
    """Of a generator that an op makes in its first step, for example."""

    class Draws(LambdaOp):
        generator: Any = None

    network = TorchNetwork([Draws(lambda x: x, "x", "y")])
    other = TorchNetwork([Draws(lambda x: x, "x", "y")])
    network.ops[0].generator = torch.Generator()
    for saved, loaded, owner in ((network, other, "file"), (other, network, "program")):
        path = fastnet.save_checkpoint(tmp_path / "run.ckpt", saved)
        told = rf"\['ops/0.generator'\] is not restored, because only the {owner} has it"
        with pytest.warns(UserWarning, match=told):
            fastnet.load_checkpoint(path, loaded)


class Holding(nn.Module):
    """Holds tensors that are not saved, of which some never change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.mask = torch.ones(3, 3).triu_()
        self.last: Any = None
        self.features: Any = None
        self.cache = torch.ones(1)
        self.hidden = torch.zeros(3)
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.queue = [torch.zeros(3)]

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.features = y
        self.last = y.detach()
        self.cache = torch.ones(len(x))
        if self.training:
            self.hidden = self.hidden * 0.9 + y.detach().mean(0)
            self.seen[0] += 1
            self.queue[0][0] = 1.0
        return y + self.hidden


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("compile", [False, fastnet.CompileOptions(backend="eager")])
@pytest.mark.parametrize("way", ["made", "copied"])
def test_changed_tensors_that_are_not_saved(
    tmp_path: Path, mode: str, compile: Any, way: str, recwarn: pytest.WarningsRecorder
) -> None:
    class Scales(TensorOp):
        def __init__(self) -> None:
            super().__init__(inputs="x", outputs="x")
            self.scale, self.count = torch.full((6,), 2.0), torch.zeros(())
            self.recent = deque([torch.zeros(())])

        def forward(self, data: Any, state: Any) -> Any:
            if state["mode"] == "train":
                self.count += 1
                self.recent[0] += 1
            return data * self.scale

    model = fastnet.build(Holding, "sgd", model_name="net")
    ops = [Scales(), ModelOp(model, "x", "y"), Squares(("y", "t"), "loss")]
    network = TorchNetwork([*ops, UpdateOp(model, "loss")], compile=compile)
    if way == "copied":
        network = copy.deepcopy(network)

    def warnings_of_next_save(first: int) -> list[str]:
        recwarn.clear()
        with network(mode):
            for step in range(first, first + 2):
                network.run_step(batch(step))
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
        return [str(one.message) for one in recwarn if "are not saved" in str(one.message)]

    told = warnings_of_next_save(0)
    if mode == "eval":
        assert not told
        return
    (text,) = told
    for path in ("net.hidden", "net.seen", "net.queue[0]", "ops/0.count", "ops/0.recent[0]"):
        assert path in text
    for name in ("mask", "last", "cache", "scale", "features"):
        assert name not in text
    # A tensor that the first steps have made is watched from the first save on.
    (text,) = warnings_of_next_save(2)
    assert "net.last" in text
    for name in ("mask", "cache", "scale", "features"):
        assert name not in text


def test_optimizer_of_two_models_in_another_order(tmp_path: Path) -> None:
    """The state of equal parameters is never exchanged."""

    def make(names: str) -> TorchNetwork:
        body = fastnet.build(
            lambda: nn.ModuleDict({name: nn.Linear(3, 3) for name in names}), None, model_name="b"
        )
        head = fastnet.build(
            lambda: nn.Linear(3, 3), lambda own: adam([*body.parameters(), *own]), model_name="head"
        )
        run = LambdaOp(lambda x: x, "x", "x")
        run.get_fe_models = lambda: {body}  # type: ignore[method-assign]
        return TorchNetwork([run, ModelOp(head, "x", "y")])

    path = fastnet.save_checkpoint(tmp_path / "run.ckpt", make("pq"))
    with pytest.raises(ValueError, match=r"parameter 0 is 'b: p.weight', .* is 'b: q.weight'"):
        fastnet.load_checkpoint(path, make("qp"))


def test_states_of_what_stands_around(tmp_path: Path) -> None:
    """Postprocessing ops and schedulers count too."""

    class Seen(Counter, NumpyOp):
        def forward(self, data: Any, state: Any) -> Any:
            self.count += 1
            return data

    class Turns(Counter, EpochScheduler[Any]):
        pass

    def make() -> Any:
        model = fastnet.build(lambda: nn.Linear(2, 1), Turns({1: "sgd"}), model_name="line")
        seen = Seen("y", "y")
        return fastnet.Network([ModelOp(model, "x", "y")], pops=[seen]), model, seen

    network, model, seen = make()
    model.optimizer.count = 5
    with network(mode="infer", epoch=1):
        network.run_step({"x": torch.ones(3, 2)})
    count = seen.count
    assert count
    other, other_model, other_seen = make()
    fastnet.load_checkpoint(fastnet.save_checkpoint(tmp_path / "run.ckpt", network), other)
    assert other_seen.count == count
    assert other_model.optimizer.count == 5


def test_an_op_that_cannot_load_its_state(tmp_path: Path) -> None:
    class Saving(LambdaOp):
        def state_dict(self) -> dict[str, int]:
            return {}

    network = fastnet.Network([Saving(lambda x: x, "x", "y")])
    with pytest.warns(
        UserWarning, match=r"ops/0 \(Saving\) has a state_dict but no load_state_dict"
    ):
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)


def test_an_op_whose_state_dict_fails(tmp_path: Path) -> None:
    class Failing(Counter, LambdaOp):
        def state_dict(self) -> dict[str, int]:
            raise RuntimeError("no state")

    network = fastnet.Network([Failing(lambda x: x, "x", "y")])
    with pytest.raises(RuntimeError, match="no state") as caught:
        fastnet.save_checkpoint(tmp_path / "run.ckpt", network)
    notes = [str(caught.value), *getattr(caught.value, "__notes__", ())]
    assert any("Raised by the state_dict of ops/0 (Failing)." in note for note in notes)


def test_lazily_conjugated_values(tmp_path: Path) -> None:
    value = torch.tensor([1 + 2j]).conj()
    network = fastnet.Network([LambdaOp(lambda x: x, "x", "y")])
    fastnet.save_checkpoint(tmp_path / "run", network, values={"value": value})
    loaded = fastnet.load_checkpoint(tmp_path / "run", network).values["value"]
    assert loaded.tolist() == [1 - 2j]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_window_with_fractional_weights_resumes_bit_for_bit(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """The sum of weights goes on in the dtype in which it was added."""

    def make() -> tuple[Any, TorchNetwork]:
        model = built(mlp(), model_name="net")
        return model, TorchNetwork(supervised(model, merge_grad=9, weight="weight"))

    def run(network: TorchNetwork, batches: list[dict[str, Any]]) -> None:
        with network("train"):
            for batch in batches:
                network.run_step(batch)

    for seed in range(8):
        torch.manual_seed(seed)
        batches = [
            {
                "x": torch.randn(4, 16),
                "t": torch.randint(0, 4, (4,)),
                "weight": (torch.rand(()) * 9).to(dtype),
            }
            for _ in range(9)
        ]
        start = seed_weights(seed, make()[0])
        (straight, network), (first, stopped), (resumed, other) = make(), make(), make()
        for model in (straight, first, resumed):
            model.load_state_dict(start)
        run(network, batches)
        run(stopped, batches[:2])
        fastnet.save_checkpoint(tmp_path / "run.ckpt", stopped)
        fastnet.load_checkpoint(tmp_path / "run.ckpt", other)
        run(other, batches[2:])
        for name, value in straight.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), name


def seed_weights(seed: int, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return weights from a seed for models of a form."""
    source = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=source)
        for name, value in model.state_dict().items()
    }
