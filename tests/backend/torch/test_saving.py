"""Files of torch models and optimizers: good ones, and all else that a path may lead to."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend import load_model, save_model
from tests.network.programs import (
    Image,
    batches,
    line,
    mlp,
    run_all,
    same_weights,
    seeded,
    supervised,
    weights,
)


def build(optimizer: Any = "adam", make: Any = mlp, **settings: Any) -> Any:
    return fastnet.build(make, optimizer, model_name="net", **settings)


def saved(folder: Path, optimizer: Any = "adam", **kwargs: Any) -> tuple[Any, str]:
    """Return a model that was trained, and the file that its weights are in."""
    model = build(optimizer)
    run_all(fastnet.Network(supervised(model)), batches(3))
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

    def test_optimizer_state_of_other_shapes(self, tmp_path: Path) -> None:
        """torch itself would load it, and broadcast it in the next step or fail."""
        _, path = saved(tmp_path)
        other = build(make=lambda: nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(1, 4)))
        for parameter in other.parameters():
            parameter.grad = torch.ones_like(parameter)
        other.current_optimizer.step()
        torch.save(other.current_optimizer.state_dict(), tmp_path / "net_opt.pt")
        shapes = "parameter 0 is for the shape (32, 1), where the model's is (32, 16)"
        self.refused(path, "the optimizer, Adam", shapes)

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt"


def dumped(data: Any, **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(data, buffer, **kwargs)
    return buffer.getvalue()


@pytest.mark.parametrize(("kind", "zipped"), [(str, True), (Path, False)])
def test_files_of_torch(path: Path, zipped: bool, kind: Any) -> None:
    model, other = Image(), seeded(Image, 1)
    path.write_bytes(dumped(other.state_dict(), _use_new_zipfile_serialization=zipped))
    load_model(model, kind(path))
    assert same_weights(model, other)


def test_another_precision(path: Path) -> None:
    """Values are converted, as by torch."""
    other, model = seeded(line, 1), line().bfloat16()
    path.write_bytes(dumped(other.state_dict()))
    load_model(model, path)
    assert same_weights(model, other.bfloat16())


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"weight": torch.ones(1, 2)}, 'Missing key(s) in state_dict: "bias"'),
        ({**line().state_dict(), "more": torch.ones(1)}, 'Unexpected key(s) in state_dict: "more"'),
        (nn.Linear(3, 1).state_dict(), "size mismatch for weight"),
        ({"weight": 3, "bias": torch.zeros(1)}, "expected torch.Tensor or Tensor-like object"),
        ({"weight": torch.ones(1, 2) * 1j, "bias": torch.zeros(1)}, "the dtype torch.complex64"),
        ({"model": line().state_dict(), "epoch": 3}, 'Missing key(s) in state_dict: "weight"'),
    ],
    ids=["missing", "unknown", "shape", "no tensor", "dtype", "inside of something"],
)
def test_another_model(path: Path, state: Any, told: str) -> None:
    path.write_bytes(dumped(state))
    model = line()
    before = weights(model)
    with pytest.raises(ValueError, match="does not fit the model, Linear") as caught:
        load_model(model, path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert same_weights(model, before)


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def inside(model: Any) -> Any:
    """A model a part of which is wrapped."""
    model[0] = compiled(nn.DataParallel(model[0]))
    return model


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A group of one process, which is enough to spread a model over."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WRAPS: dict[str, Any] = {
    "plain": lambda model: model,
    "compiled": compiled,
    "DataParallel": nn.DataParallel,
    "DDP": nn.parallel.DistributedDataParallel,
    "compiled DDP": lambda model: compiled(nn.parallel.DistributedDataParallel(model)),
    "DataParallel of compiled": lambda model: nn.DataParallel(compiled(model)),
    "inside": inside,
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("saved_as", "loaded_as"),
    [*((name, "plain") for name in WRAPS), *(("DDP", name) for name in list(WRAPS)[1:])],
)
def test_whatever_a_model_is_wrapped_in(path: Path, saved_as: str, loaded_as: str) -> None:
    """The file is torch's own, of the wrapped model."""
    source, target = mlp(), mlp()
    expected = [one.detach().clone() for one in source.parameters()]
    torch.save(WRAPS[saved_as](source).state_dict(), path)
    load_model(WRAPS[loaded_as](target), path)
    assert all(map(torch.equal, target.parameters(), expected))


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (3, "int"),
        (torch.ones(1), "Tensor"),
        ({1: torch.ones(1)}, "a dict without names"),
    ],
)
def test_other_data(path: Path, data: Any, held: str) -> None:
    path.write_bytes(dumped(data))
    with pytest.raises(ValueError, match=f"holds {held}, not weights by name"):
        load_model(line(), path)
