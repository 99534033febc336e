"""Torch models and their optimizers, to files and back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend import get_lr, load_model, save_model, set_lr
from tests.network.programs import batches, mlp, raising, same_weights, supervised, weights

OPTIMIZERS = {
    "adam": "adam",
    "rmsprop": "rmsprop",
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.05, weight_decay=0.1),
}


def build(optimizer: Any = "adam", make: Any = mlp, **settings: Any) -> Any:
    return fastnet.build(make, optimizer, model_name="net", **settings)


def steps(network: Any, data: Any) -> None:
    with network(mode="train", epoch=1):
        for batch in data:
            network.run_step(batch)


def saved(folder: Path, optimizer: Any = "adam", **kwargs: Any) -> tuple[Any, str]:
    """Return a model that was trained, and the file that its weights are in."""
    model = build(optimizer)
    steps(fastnet.Network(supervised(model)), batches(3))
    return model, save_model(model, folder, **{"save_optimizer": True, **kwargs})


def memory(model: Any) -> dict[Any, dict[str, torch.Tensor]]:
    """Copy what an optimizer remembers of each parameter."""
    state = model.current_optimizer.state_dict()["state"]
    return {
        place: {name: torch.as_tensor(value).clone() for name, value in values.items()}
        for place, values in state.items()
    }


def same_memory(one: Any, two: Any) -> bool:
    return one.keys() == two.keys() and all(
        values.keys() == two[place].keys()
        and all(torch.equal(value, two[place][name]) for name, value in values.items())
        for place, values in one.items()
    )


class TestRoundTrip:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @pytest.mark.parametrize("stepped", [False, True], ids=["fresh", "stepped"])
    def test_training_goes_on(self, tmp_path: Path, optimizer: str, stepped: bool) -> None:
        data = batches(6)
        model, other = (build(OPTIMIZERS[optimizer]) for _ in range(2))
        network, resumed = (fastnet.Network(supervised(each)) for each in (model, other))
        if stepped:
            steps(resumed, batches(2, seed=5))
        steps(network, data[:3])
        path = save_model(model, tmp_path, save_optimizer=True)
        before = weights(model)
        steps(network, data[3:])
        assert not same_weights(other, before)
        load_model(other, path, load_optimizer=True)
        assert same_weights(other, before)
        steps(resumed, data[3:])
        assert same_weights(model, other)
        assert same_memory(memory(model), memory(other))

    def test_of_a_rate_that_was_set(self, tmp_path: Path) -> None:
        model, other = build(OPTIMIZERS["adamw"]), build(OPTIMIZERS["adamw"])
        set_lr(model, 0.5, weight_decay=0.25)
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        assert get_lr(other) == 0.5
        assert other.current_optimizer.param_groups[0]["weight_decay"] == 0.25

    def test_weights_alone(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        other = build()
        load_model(other, Path(path))
        assert same_weights(model, other)
        assert memory(other) == {}

    def test_a_parallel_wrapper(self, tmp_path: Path) -> None:
        model = build()
        wrapped = nn.DataParallel(model)
        wrapped.fe_compiled, wrapped.model_name = True, "wrapped"
        path = save_model(wrapped, tmp_path)
        assert path == str(tmp_path / "wrapped.pt")
        assert torch.load(path, weights_only=True).keys() == model.state_dict().keys()
        other = build()
        load_model(other, path)
        assert same_weights(model, other)

    def test_as_weights_path_of_build(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        assert same_weights(model, build(weights_path=path))


class TestFiles:
    def test_names(self, tmp_path: Path) -> None:
        assert save_model(build(), tmp_path) == str(tmp_path / "net.pt")
        assert os.listdir(tmp_path) == ["net.pt"]

    def test_another_name(self, tmp_path: Path) -> None:
        folder = tmp_path / "deep" / "er"
        path = save_model(build(), str(folder), "other", save_optimizer=True)
        assert path == str(folder / "other.pt")
        assert sorted(os.listdir(folder)) == ["other.pt", "other_opt.pt"]

    def test_in_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        path = save_model(build(), "")
        assert os.path.samefile(path, tmp_path / "net.pt")

    def test_are_those_of_torch(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        assert same_weights(model, torch.load(path, weights_only=True))
        state = torch.load(tmp_path / "net_opt.pt", weights_only=True)
        assert same_memory(state["state"], memory(model))

    def test_failing_to_write_leaves_what_there_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, path = saved(tmp_path)
        before = Path(path).read_bytes()

        def fail(data: Any, path: str) -> None:
            Path(path).write_bytes(b"half")
            raise OSError("the disk is full")

        monkeypatch.setattr(torch, "save", fail)
        steps(fastnet.Network(supervised(model)), batches(1))
        with pytest.raises(OSError, match="the disk is full") as caught:
            save_model(model, tmp_path)
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == [f"Raised while the file '{path}' was written."]
        assert Path(path).read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["net.pt", "net_opt.pt"]


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


class TestErrors:
    """Whatever is wrong, the model and its optimizer are left as they were."""

    def refused(
        self, path: str, kind: type[Exception], text: str, model: Any = None, optimizer: bool = True
    ) -> None:
        model = build() if model is None else model
        before, state = weights(model), memory(model)
        with raising(kind, text):
            load_model(model, path, load_optimizer=optimizer)
        assert same_weights(model, before)
        assert same_memory(memory(model), state)

    @pytest.mark.parametrize("optimizer", [False, True])
    def test_no_weights(self, tmp_path: Path, optimizer: bool) -> None:
        path = str(tmp_path / "none.pt")
        self.refused(
            path,
            ValueError,
            f"There is no weights file '{path}'. Check the path.",
            optimizer=optimizer,
        )

    def test_no_path(self) -> None:
        self.refused(3, ValueError, "A weights path is a string, not 3 of type int.")  # type: ignore[arg-type]

    def test_no_optimizer_file(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path, save_optimizer=False)
        self.refused(
            path,
            AssertionError,
            f"There is no optimizer file '{tmp_path / 'net_opt.pt'}' beside the weights. Leave "
            "load_optimizer out, or save the model with save_optimizer=True.",
        )

    @pytest.mark.parametrize("name", ["net.pt", "net_opt.pt"])
    def test_nothing_is_executed(self, tmp_path: Path, name: str) -> None:
        marker = tmp_path / "marker"
        _, path = saved(tmp_path)
        torch.save({"state": Hostile(marker), "param_groups": []}, tmp_path / name)
        kind, held, writer = (
            ("weights file", "weights", "torch.save(model.state_dict(), path)")
            if name == "net.pt"
            else (
                "optimizer file",
                "an optimizer's state",
                "save_model(model, save_dir, save_optimizer=True)",
            )
        )
        self.refused(
            path,
            ValueError,
            f"The {kind} '{tmp_path / name}' is damaged, or holds more than {held}, which is not "
            f"executed. Save it anew with {writer}.",
        )
        assert not marker.exists()

    @pytest.mark.parametrize("name", ["net.pt", "net_opt.pt"])
    @pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", None])
    def test_damaged(self, tmp_path: Path, name: str, content: bytes | None) -> None:
        _, path = saved(tmp_path)
        damaged = tmp_path / name
        damaged.write_bytes(damaged.read_bytes()[:-300] if content is None else content)
        model = build()
        before = weights(model)
        with pytest.raises(ValueError, match="is damaged") as caught:
            load_model(model, path, load_optimizer=True)
        kind = "weights" if name == "net.pt" else "optimizer"
        assert str(caught.value).startswith(f"The {kind} file '{damaged}' is damaged")
        assert same_weights(model, before)
        assert memory(model) == {}

    def test_another_optimizer(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path)
        model = build("sgd")
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{tmp_path / 'net_opt.pt'}' is not of the model's optimizer, SGD: "
            "it is of Adam. Leave load_optimizer out, or give the model the optimizer that was "
            "saved.",
            model,
        )

    def test_another_optimizer_in_a_file_of_torch(self, tmp_path: Path) -> None:
        """Torch does not say there whose it is."""
        _, path = saved(tmp_path)
        model, other = build("sgd"), build("adam")
        torch.save(other.current_optimizer.state_dict(), tmp_path / "net_opt.pt")
        own, names = (sorted(each.current_optimizer.param_groups[0]) for each in (model, other))
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{tmp_path / 'net_opt.pt'}' is not of the model's optimizer, SGD: "
            f"its settings are {names}, but those of the model's are {own}. Leave load_optimizer "
            "out, or give the model the optimizer that was saved.",
            model,
        )

    def test_an_optimizer_of_another_model(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path)
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{tmp_path / 'net_opt.pt'}' is not of the model's optimizer, "
            "Adam: its groups have [4] parameters, but those of the model's have [2]. Leave "
            "load_optimizer out, or give the model the optimizer that was saved.",
            build(make=lambda: nn.Linear(16, 4)),
        )

    @pytest.mark.parametrize("held", [[1], {"state": {}}, {"a": 1}])
    def test_no_state_of_an_optimizer(self, tmp_path: Path, held: Any) -> None:
        _, path = saved(tmp_path)
        torch.save(held, tmp_path / "net_opt.pt")
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{tmp_path / 'net_opt.pt'}' is not of the model's optimizer, "
            "Adam: it holds something else than an optimizer's state. Leave load_optimizer out, "
            "or give the model the optimizer that was saved.",
        )

    @pytest.mark.parametrize("groups", [3, [3], [{}], [{"params": 3}], {"params": [1]}])
    def test_spoilt_groups(self, tmp_path: Path, groups: Any) -> None:
        _, path = saved(tmp_path)
        torch.save({"state": {}, "param_groups": groups}, tmp_path / "net_opt.pt")
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{tmp_path / 'net_opt.pt'}' is not of the model's optimizer, "
            "Adam: it holds something else than an optimizer's state. Leave load_optimizer out, "
            "or give the model the optimizer that was saved.",
        )

    def test_memories_of_other_shapes(self, tmp_path: Path) -> None:
        """Torch itself would take them, and fail in the next step."""
        _, path = saved(tmp_path)
        other = build(make=lambda: nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 4)))
        for parameter in other.parameters():
            parameter.grad = torch.ones_like(parameter)
        other.current_optimizer.step()
        torch.save(other.current_optimizer.state_dict(), tmp_path / "net_opt.pt")
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{tmp_path / 'net_opt.pt'}' is not of the model's optimizer, "
            "Adam: it has 'exp_avg' of the shape (2, 8) for a parameter of the shape (32, 16). "
            "Leave load_optimizer out, or give the model the optimizer that was saved.",
        )

    def test_the_architecture(self, tmp_path: Path) -> None:
        with raising(
            ValueError,
            "The architecture of model 'net' cannot be saved, because torch keeps it in code. "
            "Leave save_architecture out, and make the model by the same code again.",
        ):
            save_model(build(), tmp_path, save_architecture=True)
        assert os.listdir(tmp_path) == []

    def test_no_optimizer(self, tmp_path: Path) -> None:
        model = build(None)
        with raising(
            AssertionError,
            "save_model has save_optimizer=True, but model 'net' has no optimizer now.",
        ):
            save_model(model, tmp_path, save_optimizer=True)
        assert os.listdir(tmp_path) == []
        _, path = saved(tmp_path)
        with raising(
            AssertionError,
            "load_model has load_optimizer=True, but model 'net' has no optimizer now.",
        ):
            load_model(model, path, load_optimizer=True)

    def test_a_model_that_was_not_built(self, tmp_path: Path) -> None:
        text = "takes a model from fastnet.build, but this Sequential was not made by it."
        with raising(AssertionError, f"save_model {text}"):
            save_model(mlp(), tmp_path)
        model, path = saved(tmp_path)
        with raising(AssertionError, f"load_model with load_optimizer=True {text}"):
            load_model(mlp(), path, load_optimizer=True)
        other = mlp()
        load_model(other, path)
        assert same_weights(model, other)

    def test_no_model(self, tmp_path: Path) -> None:
        with raising(
            ValueError,
            "Unrecognized model instance int: expected a torch.nn.Module or a Keras model.",
        ):
            save_model(3, tmp_path)
