"""Networks and batches that the command line names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fastnet.cli.arguments import UsageError
from fastnet.cli.loading import load_batches, load_network


@pytest.mark.parametrize("function", ["networks:", "networks.py:", "package.inner:"])
def test_a_network(function: str, folder: Path) -> None:
    network = load_network(f"{function}make_network")
    with network(mode="infer", epoch=1):
        assert network.ctx_outputs == {"y", "nobody_reads_this"}


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("networks", ["'networks' is not MODULE:NETWORK", "networks.py:make_network"]),
        ("./networks:make", ["'./networks:make' is not MODULE:NETWORK", "networks.py:"]),
        ("networks:", ["'networks:' is not MODULE:NETWORK"]),
        ("netwrks:network", ["no module 'netwrks' in {folder}"]),
        ("package.iner:make_network", ["no module 'package.iner'"]),
        ("no/where.py:network", ["there is no file 'no/where.py'"]),
        ("networks:netwrk", ["no 'netwrk'. Did you mean networks:network?"]),
        ("networks:npp", ["networks has no 'npp'.$"]),  # np is a module
        ("networks:number", ["'networks:number' is of type int"]),
        ("networks:endless", ["is of type generator"]),
        ("networks:scaled", ["scaled is called without arguments", "'factor'"]),
    ],
)
def test_not_a_network(place: str, parts: list[str], folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_network(place)
    for part in parts:
        assert part.format(folder=folder) in f"{caught.value}$"


def test_a_file_is_run_once(folder: Path) -> None:
    once = load_network("networks.py:network")
    assert load_network("networks.py:network") is once
    assert load_network("./networks.py:network") is once
    assert load_network("networks:network") is once


@pytest.mark.parametrize("module", [json, sys])  # one with a file, and one without
def test_a_file_that_has_the_name_of_another_module(module: ModuleType, folder: Path) -> None:
    name = module.__name__
    (folder / f"{name}.py").write_text("from networks import network\n")
    with pytest.raises(UsageError, match="has the name of another module"):
        load_network(f"{name}.py:network")
    assert sys.modules[name] is module


def test_random_data() -> None:
    (batch,) = load_batches(
        "image:float32:32x1x8x8,label:int64:500:10,flag:bool:40,bit:uint8:40,half:float16:3",
        "torch",
        7,
    )
    kinds = {key: (value.dtype, tuple(value.shape)) for key, value in batch.items()}
    assert kinds == {
        "image": (torch.float32, (32, 1, 8, 8)),
        "label": (torch.int64, (500,)),
        "flag": (torch.bool, (40,)),
        "bit": (torch.uint8, (40,)),
        "half": (torch.float16, (3,)),
    }
    assert abs(float(batch["image"].mean())) < 0.1
    assert 0.9 < float(batch["image"].std()) < 1.1
    assert set(batch["label"].tolist()) == set(range(10))
    assert set(batch["bit"].tolist()) == {0, 1}


def test_a_file_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, x=np.arange(6).reshape(2, 3), label=np.float32(1.5))
    (batch,) = load_batches(str(path), "torch", 3)
    assert batch["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["label"].dtype is torch.float32


@pytest.mark.parametrize(
    ("place", "shapes"),
    [
        ("networks:batch", [(2, 3)]),
        ("networks.py:batches", [(2, 3), (4, 3)]),
        ("networks:endless", [(2, 3)] * 5),
    ],
)
def test_batches_of_a_module(place: str, shapes: list[tuple[int, int]], folder: Path) -> None:
    batches = load_batches(place, "torch", 5)
    assert [tuple(batch["x"].shape) for batch in batches] == shapes
    assert all(isinstance(batch["x"], torch.Tensor) for batch in batches)
    if place == "networks:batch":
        # Other values than arrays are unchanged.
        assert (batches[0]["name"], batches[0]["epoch"]) == ("a string", 3)
    if place == "networks:endless":
        assert [float(batch["x"][0, 0]) for batch in batches] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ("image:flot32:32", ["'image:flot32:32' is not KEY:DTYPE:SHAPE", "image:float32"]),
        ("image:float32:32x1*8, label:int64:32", ["'image:float32:32x1*8'"]),
        ("image:float32:32x0", ["'image:float32:32x0'"]),
        ("label:int64:32:ten", ["'label:int64:32:ten'"]),
        ("label:int8:32:1000", ["'label:int8:32:1000' cannot be drawn"]),
        ("nowhere.npz", ["'nowhere.npz' cannot be read"]),
        ("networks", ["'networks' is not MODULE:NAME"]),
        ("networks:bach", ["no 'bach'. Did you mean networks:batch?"]),
        ("networks:no_batches", ["iterable of batches"]),
        ("networks:not_batches", ["iterable of batches"]),
        ("x:float32:99999999999x99999999", ["cannot be drawn"]),
        ("x:float32:" + "9" * 5000, ["is not KEY:DTYPE:SHAPE"]),
        ("x:float32:" + "x".join("1" * 70), ["is not KEY:DTYPE:SHAPE"]),
    ],
)
def test_not_a_batch(asked: str, parts: list[str], folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_batches(asked, "torch", 3)
    message = str(caught.value)
    assert message.startswith("--batch: ")
    assert len(message) < 500
    for part in parts:
        assert part in message
