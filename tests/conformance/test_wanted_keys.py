"""Keys that are wanted after a step and that nothing gives: one warning of each, in its words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import fastnet
from fastnet.compat import v1
from fastnet.op.numpyop import NumpyOp
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer
from tests.conformance.frameworks import Framework

X = np.ones((2, 3), dtype="float32")


def same(x: Any) -> Any:
    return x * 1


def words(key: str, near: str = "") -> str:
    return (
        f"The key '{key}' is in desired_output_keys, but no op writes it and the batch does not "
        f"have it. The result will not contain it.{near and f' Did you mean {near!r}?'}"
    )


@contextmanager
def warned(*texts: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [str(one.message) for one in caught] == list(texts)
    # told of the line that has run the step
    assert {one.filename for one in caught} <= {__file__}


def run(fw: Framework, network: Any, wanted: Any, batch: Any = None, **opening: Any) -> set[str]:
    tensors = fw.tensors({"x": X} if batch is None else batch)
    with fw.opened(network, desired_output_keys=wanted, **opening):
        keys = set(network.run_step(tensors))
        with warned():
            assert set(network.run_step(tensors)) == keys
    return keys


def test_once_for_each_key(fw: Framework) -> None:
    network = fw.network([LambdaOp(same, "x", "y_pred"), LambdaOp(same, "x", "z")])
    with warned(words("nothing_like_it"), words("y_perd", "y_pred")):
        assert run(fw, network, {"y_perd", "z", "nothing_like_it"}) == {"x", "z"}
    with warned(words("X", "x")):
        assert run(fw, network, ["y_perd", "X", "z"]) == {"x", "z"}
    with warned(), fw.opened(network, desired_output_keys=["y_perd"], epoch=2):
        network.run_step(fw.tensors({"x": X}))
    with warned(words("y_perd", "y_pred")):
        run(fw, fw.network(network.ops), "y_perd")


def test_not_of_what_the_batch_has(fw: Framework) -> None:
    network = fw.network([LambdaOp(same, "x", "y")])
    with warned():
        assert run(fw, network, ["y", "label"], {"x": X, "label": X}) == {"x", "y", "label"}
        assert run(fw, network, ["y", "*"]) == {"x", "y"}


def test_not_of_what_some_op_writes(fw: Framework) -> None:
    """One list of keys may serve each mode, epoch and dataset."""
    network = fw.network(
        [
            LambdaOp(same, "x", "y"),
            LambdaOp(same, "x", "w", mode="eval"),
            LambdaOp(same, "x", "v", ds_id="other"),
            EpochScheduler({5: LambdaOp(same, "x", "u")}),
            LambdaOp(same, "x", "gone"),
            Delete("gone"),
        ],
        NumpyOp("y", "t"),
    )
    with warned():
        assert run(fw, network, ["y", "w", "v", "u", "t", "gone"]) == {"x", "y", "t"}


def test_the_keys_alone(fw: Framework) -> None:
    """With none that is there nothing comes back but the batch."""
    network = fw.network([LambdaOp(same, "x", "y")])
    with warned(words("yy", "y")):
        assert run(fw, network, ["yy"]) == {"x"}


def test_with_slicers_and_postprocessing(fw: Framework) -> None:
    slicer = AxisSlicer(0, "x", ["x", "y"])
    network = fw.network([LambdaOp(same, "x", "y")], NumpyOp("y", "z"), slicers=slicer)
    with warned(words("zz", "z")):
        assert run(fw, network, ["zz", "y"]) == {"x", "y", "z"}


def test_as_an_error(fw: Framework) -> None:
    """A program that turns warnings into errors can go on."""
    network = fw.network([LambdaOp(same, "x", "y")])
    tensors = fw.tensors({"x": X})
    with fw.opened(network, desired_output_keys=["yy", "y"]), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="'yy' is in desired_output_keys"):
            network.run_step(tensors)
        assert set(network.run_step(tensors)) == {"x", "y"}


def test_what_is_no_batch_tells_nothing(fw: Framework) -> None:
    network = fw.network([LambdaOp(same, "x", "y")])
    with fw.opened(network, desired_output_keys=["yy"]):
        with warned(), pytest.raises(TypeError, match="run_step takes a batch"):
            network.run_step([fw.tensor(X)])
        with warned(words("yy", "y")):
            network.run_step(fw.tensors({"x": X}))


def test_while_it_is_profiled(fw: Framework) -> None:
    network = fw.network([LambdaOp(same, "x", "y")])
    tensors = fw.tensors({"x": X})
    with fastnet.profile(network) as profile, warned(words("yy", "y")):
        for epoch in (1, 2):
            with fw.opened(network, desired_output_keys=["yy", "y"], epoch=epoch):
                for _ in range(3):
                    assert set(network.run_step(tensors)) == {"x", "y"}
    assert profile.unmeasured == 0
    assert sum(section.steps for section in profile.sections) == 6


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_of_the_older_api(framework: str) -> None:
    network = getattr(v1, "TFNetwork" if framework == "tf" else "TorchNetwork")(
        [LambdaOp(same, "x", "y_pred"), LambdaOp(same, "x", "z")]
    )
    batch = {"x": fastnet.backend.to_tensor(X, framework)}
    with warned(words("y_perd", "y_pred")):
        for _ in range(2):
            network.load_epoch("eval", 1, output_keys={"y_perd", "z"})
            for _ in range(2):
                same_batch, prediction = network.run_step(batch)
                assert same_batch is batch
                assert set(prediction) == {"z"}
            network.unload_epoch()
