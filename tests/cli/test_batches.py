"""What `--batch` may say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fastnet.cli.batches import load_batches
from fastnet.cli.usage import UsageError


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


def test_random_data_are_the_same_each_time() -> None:
    first, again = (load_batches("x:float64:5,y:int8:5:100", "torch", 1)[0] for _ in range(2))
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])


@pytest.mark.tf
def test_tensors_of_the_other_framework() -> None:
    tf = pytest.importorskip("tensorflow")
    (batch,) = load_batches("x:float32:2x3,label:int64:2:10", "tf", 1)
    assert tf.is_tensor(batch["x"])
    assert (batch["x"].shape, batch["label"].dtype) == ((2, 3), tf.int64)


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
        # what is no array is not touched
        assert (batches[0]["name"], batches[0]["epoch"]) == ("a string", 3)
    if place == "networks:endless":
        assert [float(batch["x"][0, 0]) for batch in batches] == [1, 2, 3, 4, 5]


RANDOM = "(Random data are written KEY:TYPE:SHAPE, such as image:float32:32x1x8x8.)"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            "image:flot32:32",
            "'flot32', in 'image:flot32:32', is no type. Did you mean 'float32'? It is one of: "
            "float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
            "bool.",
        ),
        (
            "image:float32:32x1*8, label:int64:32",
            "'32x1*8', in 'image:float32:32x1*8', is no shape. Write whole numbers from 1 up with "
            "an x between them, such as 32x1x8x8.",
        ),
        (
            "image:float32:32x0",
            "'32x0', in 'image:float32:32x0', is no shape. Write whole numbers from 1 up with an "
            "x between them, such as 32x1x8x8.",
        ),
        (
            "image:float32",
            "'image:float32' is not KEY:TYPE:SHAPE, nor KEY:TYPE:SHAPE:BELOW. Write for example "
            "image:float32:32x1x8x8,label:int64:32:10.",
        ),
        (
            "image:float32:4,label",
            "'label' is not KEY:TYPE:SHAPE, nor KEY:TYPE:SHAPE:BELOW. Write for example "
            "image:float32:32x1x8x8,label:int64:32:10.",
        ),
        (
            "label:int64:32:ten",
            "'ten', in 'label:int64:32:ten', is no whole number from 1 up. Numbers from 0 to "
            "below it are drawn.",
        ),
        (
            "label:int8:32:1000",
            "int8 cannot hold all numbers below 1000, which 'label:int8:32:1000' asks for.",
        ),
        (
            "x:float32:3:10",
            "'x:float32:3:10' has a BELOW, which only whole numbers have, not float32.",
        ),
        ("x:float32:3,x:int64:4", "the key 'x' stands there twice."),
        ("nowhere.npz", "there is no file 'nowhere.npz'."),
        ("empty.npz", "'empty.npz' has no arrays in it."),
        (
            "networks",
            "'networks' does not say MODULE:NAME: the name of a module or a file, a colon, and a "
            f"name in it, such as networks.py:make_network. {RANDOM}",
        ),
        ("networks:bach", f"networks has no 'bach'. Did you mean networks:batch? {RANDOM}"),
        (
            "networks:npp",
            "networks has no 'npp'. It has: batch, batches, endless, make_network, no_batches, "
            f"not_batches. {RANDOM}",
        ),
        (
            "networks:number",
            "'networks:number' is of type int. It must be a batch (a dict), an iterable of "
            "batches, or a function without arguments that gives either.",
        ),
        ("networks:no_batches", "'networks:no_batches' gives no batches."),
        (
            "networks:not_batches",
            "item 1 of 'networks:not_batches' is of type int. A batch is a dict with a value for "
            "each key.",
        ),
    ],
)
def test_what_is_refused(asked: str, message: str, folder: Path) -> None:
    np.savez(folder / "empty.npz")
    with pytest.raises(UsageError) as caught:
        load_batches(asked, "torch", 3)
    assert str(caught.value) == f"--batch: {message}"


MANY = "9" * 5000


@pytest.mark.parametrize(
    "asked",
    [
        "x:float32:99999999999x99999999",
        "x:uint8:1000000x1000000",
        "x:int64:9223372036854775807",
        "x:bool:9223372036854775808x2",
        f"x:float32:{MANY}",
        f"x:float32:3x{MANY}",
        f"x:float32:{'x'.join('1' * 70)}",
        f"x:int64:3:{MANY}",
        "x:int64:3:99999999999999999999999999",
        f"{MANY}:int64",
        f"x:{MANY}:3",
        "x:float32:3\u0663",
        "x:float32:3x 4",
    ],
)
def test_a_shape_that_is_huge_or_malformed(asked: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_batches(asked, "torch", 1)
    assert str(caught.value).startswith("--batch: ")
    assert len(str(caught.value)) < 500
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_shape_of_more_than_memory() -> None:
    with pytest.raises(UsageError) as caught:
        load_batches("y:int8:2,x:float32:99999999999x99999999", "torch", 1)
    assert str(caught.value) == (
        "--batch: 'x:float32:99999999999x99999999' asks for more numbers than there is memory for. "
        "Ask for a smaller shape."
    )


@pytest.mark.parametrize("kind", ["text", "pickle", "one array", "nothing"])
def test_a_file_that_is_none_of_arrays(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    if kind == "text":
        path.write_text("x, y\n1, 2\n")
    elif kind == "nothing":
        path.touch()
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    else:
        np.savez(path, x=np.array([{"a": 1}], dtype=object))
    pattern = rf"^--batch: {re.escape(repr(str(path)))} cannot be read as an \.npz file of arrays: "
    with pytest.raises(UsageError, match=pattern):
        load_batches(str(path), "torch", 1)
