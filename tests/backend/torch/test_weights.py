"""Weights files: good ones, and everything else that a path may lead to."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastnet.backend import load_model
from fastnet.backend.torch.weights import read_weights
from tests.network.programs import Image, line, mlp, same_weights, seeded, weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt"


def saved(data: Any, **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(data, buffer, **kwargs)
    return buffer.getvalue()


@pytest.mark.parametrize("make", [line, mlp, Image])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", [str, Path])
def test_files_of_torch(path: Path, make: Any, zipped: bool, kind: Any) -> None:
    other = seeded(make, 1)
    path.write_bytes(saved(other.state_dict(), _use_new_zipfile_serialization=zipped))
    model = make()
    load_model(model, kind(path))
    assert same_weights(model, other)


def test_another_precision(path: Path) -> None:
    """Values are converted, as by torch."""
    other, model = seeded(line, 1), line().bfloat16()
    path.write_bytes(saved(other.state_dict()))
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
    path.write_bytes(saved(state))
    model = line()
    before = weights(model)
    with pytest.raises(ValueError, match="does not fit the model, Linear") as caught:
        load_model(model, path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert same_weights(model, before)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("zipped", [True, False])
def test_cut_short(path: Path, zipped: bool) -> None:
    """The error says which file it is and what to do."""
    good = saved(mlp().state_dict(), _use_new_zipfile_serialization=zipped)
    for size in range(0, len(good), len(good) // 60):
        path.write_bytes(good[:size])
        with pytest.raises(ValueError, match=r"(damaged|holds).* Save") as caught:
            read_weights(path)
        text = str(caught.value)
        assert text.startswith(f"The weights file '{path}' ")
        assert caught.value.__cause__ is not None or "holds" in text


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
@pytest.mark.parametrize("saved_as", WRAPS)
@pytest.mark.parametrize("loaded_as", WRAPS)
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
        ([torch.ones(1)], "list"),
        (torch.ones(1), "Tensor"),
        (None, "NoneType"),
        ({1: torch.ones(1)}, "a dict without names"),
    ],
)
def test_other_data(path: Path, data: Any, held: str) -> None:
    path.write_bytes(saved(data))
    with pytest.raises(ValueError, match=f"holds {held}, not weights by name"):
        load_model(line(), path)
