"""Save torch models and optimizers to files, and load them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend import load_model, save_model
from tests.network.programs import batches, mlp, same_weights, supervised, weights


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
    """Copy the state of an optimizer by parameter."""
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


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


class TestErrors:
    """A load that fails leaves the model and its optimizer as they were."""

    def refused(self, path: str, *parts: str, model: Any = None) -> None:
        """Expect an error whose text has all parts."""
        model = build() if model is None else model
        before, state = weights(model), memory(model)
        with pytest.raises(ValueError, match="file") as caught:
            load_model(model, path, load_optimizer=True)
        assert all(part in str(caught.value) for part in parts)
        assert same_weights(model, before)
        assert same_memory(memory(model), state)

    @pytest.mark.parametrize("name", ["net.pt", "net_opt.pt"])
    def test_nothing_is_executed(self, tmp_path: Path, name: str) -> None:
        marker = tmp_path / "marker"
        _, path = saved(tmp_path)
        torch.save({"state": Hostile(marker), "param_groups": []}, tmp_path / name)
        self.refused(path, str(tmp_path / name), "would have to be executed")
        assert not marker.exists()

    def test_another_optimizer_in_a_file_of_torch(self, tmp_path: Path) -> None:
        """A `state_dict` of torch does not name its class, but the settings differ."""
        _, path = saved(tmp_path)
        torch.save(build("adam").current_optimizer.state_dict(), tmp_path / "net_opt.pt")
        self.refused(path, "its settings are", "'amsgrad'", "'momentum'", model=build("sgd"))

    @pytest.mark.parametrize("of_torch", [False, True])
    @pytest.mark.parametrize("optimizer", ["adam", "adamax", "adadelta"])
    def test_optimizer_state_of_other_shapes(
        self, tmp_path: Path, optimizer: str, of_torch: bool
    ) -> None:
        """torch itself would load it, and broadcast it in the next step or fail."""
        model, path = saved(tmp_path, optimizer)
        other = build(
            optimizer, lambda: nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(1, 4))
        )
        for parameter in other.parameters():
            parameter.grad = torch.ones_like(parameter)
        other.current_optimizer.step()
        save_model(other, tmp_path, "other", save_optimizer=True)
        os.replace(tmp_path / "other_opt.pt", tmp_path / "net_opt.pt")
        if of_torch:
            torch.save(other.current_optimizer.state_dict(), tmp_path / "net_opt.pt")
        text = "its state of parameter 0 is for the shape (32, 1), where the model's is (32, 16)"
        name = type(model.current_optimizer).__name__
        self.refused(path, f"the optimizer, {name}: {text}", model=build(optimizer))

    def test_the_architecture(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="architecture of model 'net' cannot be saved"):
            save_model(build(), tmp_path, save_architecture=True)
        assert os.listdir(tmp_path) == []


def test_scalers_go_with_their_optimizers(tmp_path: Path) -> None:
    model, other = build(), build()
    for one, scale in ((model, 512.0), (other, 2.0)):
        one.current_optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler = model.current_optimizer.scaler
    # An overflow halves the scale.
    model[0].weight.grad = torch.full_like(model[0].weight, float("inf"))
    scaler.scale(torch.ones(()))
    scaler.unscale_(model.current_optimizer)
    scaler.step(model.current_optimizer)
    scaler.update()
    load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
    assert other.current_optimizer.scaler.state_dict() == scaler.state_dict()
    assert other.current_optimizer.scaler.scale(torch.ones(())).item() == 256


def test_files_are_those_of_torch(tmp_path: Path) -> None:
    model, path = saved(tmp_path)
    assert same_weights(model, torch.load(path, weights_only=True))
    state = torch.load(tmp_path / "net_opt.pt", weights_only=True)
    assert same_memory(state["state"], memory(model))
