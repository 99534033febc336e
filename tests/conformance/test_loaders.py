"""Loops over loaders: epochs of Keras datasets, and exhausted iterators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.op.tensorop import LambdaOp
from tests.conformance.frameworks import Framework, tf

utils: Any = tf.keras.utils if tf else None
Dataset: Any = getattr(utils, "PyDataset", getattr(utils, "Sequence", object))
KERAS_3 = hasattr(utils, "PyDataset")


class Shifting(Dataset):  # type: ignore[misc]
    """Batches that change at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.shift = 0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.calls.append(f"batch {index}")
        return {"x": np.full(3, index + self.shift, "float32")}

    def on_epoch_begin(self) -> None:
        self.calls.append("begin")

    def on_epoch_end(self) -> None:
        self.calls.append("end")
        self.shift += 10


def by_steps(network: Any, loader: Any) -> Iterable[dict[str, Any]]:
    return (result for _, result in fastnet.steps(network, loader, "infer"))


LOOPS: list[Callable[[Any, Any], Iterable[Any]]] = [
    by_steps,
    lambda network, loader: network.iter_transform(loader, "infer"),
    lambda network, loader: network.transform(loader, "infer"),
]
EPOCH = [*(["begin"] if KERAS_3 else []), "batch 0", "batch 1", "end"]


def doubling(fw: Framework) -> Any:
    return fw.network([LambdaOp(lambda x: x * 2, "x", "y")])


@pytest.mark.parametrize("loop", LOOPS, ids=["steps", "iter_transform", "transform"])
def test_keras_datasets_are_told_of_epochs(fw: Framework, loop: Any) -> None:
    pytest.importorskip("tensorflow")
    network, data = doubling(fw), Shifting()
    found = [fw.array(result["y"])[0] for _ in range(2) for result in loop(network, data)]
    assert found == [0, 2, 20, 22]
    assert data.calls == 2 * EPOCH


@pytest.mark.parametrize("loop", LOOPS[:2], ids=["steps", "iter_transform"])
def test_epoch_that_is_left_early_does_not_end(fw: Framework, loop: Any) -> None:
    pytest.importorskip("tensorflow")
    data = Shifting()
    results = iter(loop(doubling(fw), data))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert data.calls == EPOCH[: EPOCH.index("batch 1")]


def test_classes_other_than_keras_own_are_not_called(fw: Framework) -> None:
    class Loader(list):  # type: ignore[type-arg]
        def on_epoch_begin(self, epoch: int) -> None:
            raise NotImplementedError

    (result,) = doubling(fw).transform(Loader([{"x": np.ones(1, "float32")}]), "infer")
    assert fw.array(result["y"]).tolist() == [2]


@pytest.mark.parametrize("loop", LOOPS, ids=["steps", "iter_transform", "transform"])
def test_exhausted_generators_are_reported(fw: Framework, loop: Any) -> None:
    network = doubling(fw)
    data = ({"x": np.ones(1, "float32")} for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loop(network, data))) == 2
        assert len(list(loop(network, []))) == 0
    with pytest.warns(UserWarning, match="no step.*generator, is exhausted") as caught:
        assert len(list(loop(network, data))) == 0
    assert len(caught) == 1
    assert caught[0].filename == __file__
