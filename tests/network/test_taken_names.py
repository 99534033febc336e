"""Models that use fastnet's names themselves: `build` takes nothing away from them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend import get_lr, load_model, save_model, set_lr
from fastnet.network import TorchNetwork
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from tests.network.programs import (
    batches,
    line,
    mlp,
    regression,
    run_all,
    same_weights,
    seeded,
    sgd,
    supervised,
)


class Learner(nn.Module):
    """A module with a layer, a table, a string, a method and a property under fastnet's names."""

    current_optimizer = "of the class"

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = mlp()
        self.register_buffer("fe_input_spec", torch.ones(1))
        self.fe_alone = nn.Parameter(torch.ones(4))
        self.loss_name = "cross entropy"

    @property
    def mixed_precision(self) -> str:
        return "never"

    def model_name(self) -> str:
        return "a learner"

    @property
    def fe_compiled(self) -> bool:
        raise RuntimeError("nobody may ask")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.optimizer(x) * self.fe_alone
        return y


class Wrapped(nn.Module):
    """A module that runs another one, whatever else it has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


def by_hand(model: nn.Module, optimizers: list[torch.optim.Optimizer], data: list[Any]) -> None:
    """Train with an optimizer for each batch."""
    for optimizer, batch in zip(optimizers, data, strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["x"]), batch["t"]).backward()
        optimizer.step()


class TestAModuleThatUsesAllOfThem:
    @pytest.fixture
    def learner(self) -> Learner:
        model: Learner = seeded(Learner)
        return model

    def test_keeps_them(self, learner: Learner, tmp_path: Path) -> None:
        inner, twin = learner.optimizer, copy.deepcopy(learner)
        own = set(learner.state_dict())
        assert fastnet.build(lambda: learner, sgd(), model_name="m") is learner
        network = TorchNetwork(supervised(learner))
        data = batches(3)
        run_all(network, data)
        assert learner.optimizer is inner
        assert torch.equal(learner.get_buffer("fe_input_spec"), torch.ones(1))
        assert isinstance(learner.fe_alone, nn.Parameter)
        assert learner.loss_name == "cross entropy"
        assert learner.mixed_precision == "never"
        assert learner.model_name() == "a learner"
        assert learner.current_optimizer == "of the class"
        assert set(learner.state_dict()) == own
        # and is trained like any other
        hand = torch.optim.SGD(twin.parameters(), lr=0.1)
        by_hand(twin, [hand] * 3, data)
        assert same_weights(learner, twin)

    def test_is_known_to_all_of_fastnet(self, learner: Learner, tmp_path: Path) -> None:
        schedule = EpochScheduler({1: sgd(0.5), 2: "adam"})
        fastnet.build(lambda: learner, schedule, model_name="m")
        network = TorchNetwork(supervised(learner, merge_grad=2))
        assert "model 'm' with SGD" in str(network.explain())
        (optimizers,) = network.get_scheduled_items("train")[3:]
        kinds = [type(one).__name__ for one in optimizers.get_all_values()]
        assert kinds == ["SGD", "Adam"]
        assert get_lr(learner) == 0.5
        set_lr(learner, 0.25)
        assert optimizers.get_current_value(1).param_groups[0]["lr"] == 0.25
        data = batches(4)
        run_all(network, data[:2])
        run_all(network, data[2:], epoch=2)
        assert get_lr(learner) == 0.001
        saved = save_model(learner, str(tmp_path), save_optimizer=True)
        assert Path(saved).name == "m.pt"
        assert set(torch.load(saved)) == set(learner.state_dict())
        moments = copy.deepcopy(optimizers.get_current_value(2).state_dict()["state"])
        run_all(network, data[2:], epoch=2)
        load_model(learner, saved, load_optimizer=True)
        again = optimizers.get_current_value(2).state_dict()["state"]
        assert torch.equal(again[0]["exp_avg"], moments[0]["exp_avg"])
        assert learner.loss_name == "cross entropy"

    def test_errors_name_it_as_build_did(self, learner: Learner) -> None:
        fastnet.build(lambda: learner, None, model_name="m")
        with pytest.raises(ValueError, match="Model 'm' is to be updated, but it has no optimizer"):
            run_all(TorchNetwork(supervised(learner)), batches(1))
        with pytest.raises(ValueError, match="model 'm' has no optimizer now"):
            get_lr(learner)

    def test_built_anew_has_the_new_optimizer(self, learner: Learner) -> None:
        fastnet.build(lambda: learner, sgd(0.5), model_name="m")
        fastnet.build(lambda: learner, sgd(0.25), model_name="n")
        assert get_lr(learner) == 0.25
        network = TorchNetwork(supervised(learner))
        assert "model 'n' with SGD" in str(network.explain())
        assert isinstance(learner.optimizer, nn.Sequential)

    def test_two_of_them_are_told_apart(self) -> None:
        models = fastnet.build(lambda: [Learner(), Learner()], ["sgd", None], model_name=["a", "A"])
        with pytest.raises(AssertionError, match="Two models are called 'a' and 'A'"):
            TorchNetwork([ModelOp(one, "x", "y") for one in models])


@pytest.mark.parametrize("name", ["optimizer", "current_optimizer", "model_name", "loss_name"])
@pytest.mark.parametrize("kind", ["module", "parameter", "buffer", "string", "none"])
def test_each_kind_of_attribute_stays(name: str, kind: str) -> None:
    values: dict[str, Any] = {
        "module": nn.Linear(1, 1),
        "parameter": nn.Parameter(torch.ones(1)),
        "buffer": torch.ones(1),
        "string": "mine",
        "none": None,
    }
    model, own = Wrapped(), values[kind]
    if kind == "buffer":
        model.register_buffer(name, own)
    else:
        setattr(model, name, own)
    fastnet.build(lambda: model, sgd())
    before = [one.detach().clone() for one in model.parameters()]
    run_all(TorchNetwork(supervised(model)), batches(1))
    assert getattr(model, name) is own
    assert not all(map(torch.equal, before, model.parameters()))


class TestFreeNames:
    """They are written to as ever, for others read them."""

    def test_an_optimizer_assigned_later_counts(self) -> None:
        model, twin = seeded(mlp), seeded(mlp)
        fastnet.build(lambda: model, sgd(0.1))
        model.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        data = batches(2)
        run_all(TorchNetwork(supervised(model)), data)
        assert model.current_optimizer is model.optimizer
        hand = torch.optim.Adam(twin.parameters(), lr=0.01)
        by_hand(twin, [hand, hand], data)
        assert same_weights(model, twin)

    def test_the_losses_are_listed_in_one_set(self) -> None:
        model = fastnet.build(line, "sgd")
        UpdateOp(model, "one")
        names = model.loss_name
        UpdateOp(model, "two")
        assert model.loss_name is names
        assert names == {"one", "two"}

    def test_what_was_put_there_since_stays(self) -> None:
        model = fastnet.build(line, "sgd")
        model.loss_name = "mine"
        run_all(TorchNetwork(regression(model)), [{"x": torch.ones(3, 2)}])
        assert model.loss_name == "mine"

    def test_built_by_fastestimator_they_are_written_over(self) -> None:
        """What FastEstimator's own build leaves on a model."""
        model: Any = line()
        model.optimizer = model.current_optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model.model_name, model.mixed_precision, model.fe_compiled = "theirs", False, True
        fastnet.build(lambda: model, sgd(0.5), model_name="ours")
        assert model.model_name == "ours"
        assert model.optimizer.param_groups[0]["lr"] == 0.5

    def test_of_a_wrapper_that_hands_attributes_through(self) -> None:
        """As torch.compile makes one."""
        inner = fastnet.build(Learner, sgd(0.5), model_name="inner")
        outer = fastnet.build(lambda: torch.compile(inner, backend="eager"), sgd(0.25))
        assert isinstance(outer.optimizer, nn.Sequential)
        assert get_lr(outer) == 0.25


class TestDistributedDataParallel:
    """It has a `mixed_precision` of its own, which its forward goes by."""

    @pytest.fixture
    def group(self, tmp_path: Path) -> Iterator[None]:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
        )
        yield
        torch.distributed.destroy_process_group()

    @pytest.mark.usefixtures("group")
    def test_is_trained_as_by_hand(self) -> None:
        parallel = nn.parallel.DistributedDataParallel
        model, twin = parallel(seeded(mlp)), parallel(seeded(mlp))
        fastnet.build(lambda: model, sgd())
        assert model.mixed_precision is None
        data = batches(3)
        run_all(TorchNetwork(supervised(model)), data)
        by_hand(twin, [torch.optim.SGD(twin.parameters(), lr=0.1)] * 3, data)
        assert same_weights(model, twin)


class TestModelsMadeBefore:
    """`build` takes them as they are, though a module can be called like a function."""

    def test_one(self) -> None:
        made, twin = seeded(mlp), seeded(mlp)
        assert fastnet.build(made, sgd(), model_name="m") is made
        assert made.model_name == "m"
        data = batches(2)
        run_all(TorchNetwork(supervised(made)), data)
        by_hand(twin, [torch.optim.SGD(twin.parameters(), lr=0.1)] * 2, data)
        assert same_weights(made, twin)

    @pytest.mark.parametrize("kind", [list, tuple])
    def test_several(self, kind: Any) -> None:
        made = kind([line(), mlp()])
        models = fastnet.build(made, ["sgd", None], model_name=["a", "b"])
        assert type(models) is list
        assert models is not made
        assert [id(one) for one in models] == [id(one) for one in made]
        assert [one.model_name for one in models] == ["a", "b"]

    def test_one_in_a_list_is_one(self) -> None:
        made = line()
        assert fastnet.build([made], "sgd") is made

    def test_one_whose_forward_needs_no_argument_is_not_run(self) -> None:
        class Source(nn.Module):
            def forward(self) -> nn.Module:
                raise AssertionError("it ran")

        made = Source()
        assert fastnet.build(made, None) is made

    @pytest.mark.parametrize("make", [mlp, lambda: mlp(), Learner, [Learner][0]])
    def test_what_makes_them_is_still_called(self, make: Any) -> None:
        one, other = fastnet.build(make, "sgd"), fastnet.build(make, "sgd")
        assert isinstance(one, nn.Module)
        assert one is not other

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ([line, mlp], r"model_fn is \[<function"),
            ((nn.Linear(1, 1), nn.Linear), r"model_fn is \(Linear"),
            ([], r"model_fn is \[\]"),
            (None, "model_fn is None"),
            ("sgd", "model_fn is 'sgd'"),
        ],
    )
    def test_what_is_neither(self, given: Any, text: str) -> None:
        with pytest.raises(TypeError, match=f"{text}.* Pass a function"):
            fastnet.build(given, "sgd")
