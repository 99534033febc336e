"""Bad input: each kind of error, and every word of its text."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.compat import v1
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import Batch, RemoveIf
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.network.programs import built, is_free, line, raising, run

MAKERS = [fastnet.Network, TorchNetwork]


def first(x: Any, *more: Any) -> Any:
    return x


class TestSlicers:
    def test_a_key_that_is_left_in_pieces(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x, w: [x, w], ["x", "w"], ["y", "z"])],
            slicers=[AxisSlicer(axis=0, slice="x", unslice=None), MeanUnslicer("z")],
        )
        for _ in range(2):
            with raising(
                ValueError,
                "The keys ['y'] are wanted after the step, but slicers leave them in pieces: no "
                "slicer un-slices them (mode='train', epoch=2, ds_id='a'). Name each of them in "
                "the `unslice` of the slicer that cuts, to have its pieces joined, or of a "
                "MeanUnslicer, to have their mean, or leave it out of desired_output_keys.",
            ):
                network(mode="train", epoch=2, ds_id="a")
            assert is_free(network)
        batch = {"x": torch.ones(2), "w": torch.ones(1)}
        assert set(run(network, batch, desired_output_keys={"z"})) == {"x", "w", "z"}


class TestModels:
    @pytest.mark.parametrize("make", MAKERS)
    @pytest.mark.parametrize(
        ("names", "text"),
        [
            (
                ["same", "same"],
                "Two models are called 'same', so that their files would be the same. Pass "
                "fastnet.build another model_name for one of them.",
            ),
            (
                ["Model", "model"],
                "Two models are called 'Model' and 'model', which are one name on a file system "
                "that takes upper and lower case as the same. Pass fastnet.build a model_name for "
                "each.",
            ),
        ],
    )
    def test_of_one_name(self, make: Any, names: list[str], text: str) -> None:
        models = fastnet.build(lambda: [line(), line()], [None, None], model_name=names)
        with raising(AssertionError, text):
            make([ModelOp(model, "x", "y") for model in models])

    def test_one_model_in_two_ops_is_one_model(self) -> None:
        model = built(line, None)
        ops = [ModelOp(model, "x", "y"), EpochScheduler({2: ModelOp(model, "x", "z")})]
        assert fastnet.Network(ops).models == [model]

    def test_of_two_frameworks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = built(line, None, model_name="line")
        keras = types.ModuleType("keras")
        keras.Model = type("Model", (), {"model_name": "functional", "mixed_precision": False})
        monkeypatch.setitem(sys.modules, "keras", keras)
        ops = [ModelOp(model, "x", "y"), Holding(keras.Model())]
        with raising(
            AssertionError,
            "The ops hold models of several frameworks: {'torch': ['line'], 'tf': ['functional']}. "
            "Make a network for each.",
        ):
            fastnet.Network(ops)

    def test_of_no_known_framework(self) -> None:
        model = types.SimpleNamespace(model_name="mystery", mixed_precision=False)
        with raising(
            ValueError,
            "The models ['mystery'] are of no known framework. Build models of torch or "
            "Keras with fastnet.build.",
        ):
            fastnet.Network([Holding(model)])

    @pytest.mark.parametrize("make", MAKERS)
    def test_mixed_precision_for_some(self, make: Any) -> None:
        models = [
            built(line, None, model_name=name, mixed_precision=name in "bd") for name in "abcd"
        ]
        with raising(
            ValueError,
            "The models ['b', 'd'] have mixed precision and ['a', 'c'] have not, but the models of "
            "a network must agree. Build all of them with the same mixed_precision.",
        ):
            make([ModelOp(model, "x", "y") for model in models])


class Holding(TensorOp):
    """Holds whatever model it is given."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def get_fe_models(self) -> Any:
        return [self.model]


class TestPostprocessing:
    @pytest.mark.parametrize("make", MAKERS)
    @pytest.mark.parametrize(
        "wrapped", [lambda op: op, lambda op: [None, op], lambda op: RepeatScheduler([None, op])]
    )
    def test_ops_that_change_what_a_batch_is(self, make: Any, wrapped: Any) -> None:
        ops = [LambdaOp(first, "x", "y")]
        with raising(
            ValueError,
            "RemoveIf (op 0, inputs ['x', 'y']) drops samples, which postprocessing cannot do: the "
            "network's results are already made. Filter in the data pipeline.",
        ):
            make(ops, wrapped(RemoveIf(first, inputs=["x", "y"])))
        with raising(
            ValueError,
            "Batch (op 0) makes batches, but postprocessing gets batches. Leave it out, or use it "
            "in the data pipeline.",
        ):
            make(ops, wrapped(Batch(batch_size=3)))


NOT_OPS = [
    (3, "int, which is no op."),
    ("a word", "str, which is no op."),
    (first, "function, which is no op."),
    (True, "bool, which is no op."),
    (
        AxisSlicer(0, "x"),
        "AxisSlicer, which is no op: it lacks ['inputs', 'outputs', 'in_list', 'out_list', "
        "'forward'].",
    ),
    (
        torch.nn.Linear(1, 1),
        "Linear, which is no op: it lacks ['inputs', 'outputs', 'mode', 'ds_id', 'in_list', "
        "'out_list'].",
    ),
    (
        types.SimpleNamespace(
            inputs=["x"], outputs=["y"], mode=set(), ds_id=set(), in_list=False, forward=first
        ),
        "SimpleNamespace, which is no op: it lacks ['out_list'].",
    ),
]
ADVICE = " Pass a TensorOp, or an object with the same attributes."


@pytest.mark.parametrize("make", MAKERS)
class TestNotAnOp:
    @pytest.mark.parametrize(("item", "text"), NOT_OPS, ids=[text for _, text in NOT_OPS])
    def test_among_ops(self, make: Any, item: Any, text: str) -> None:
        good = LambdaOp(first, "x", "y")
        with raising(AssertionError, f"The network's op 1 is {text}{ADVICE}"):
            make([None, good, item])
        with raising(AssertionError, f"The network's op 2 is {text}{ADVICE}"):
            make([good, None, good, EpochScheduler({1: good, 2: item, 3: None})])

    def test_alone(self, make: Any) -> None:
        with raising(AssertionError, f"The network's op 0 is int, which is no op.{ADVICE}"):
            make(3)

    def test_a_numpy_op(self, make: Any) -> None:
        with raising(
            AssertionError,
            "The network's op 0 is LambdaOp, which is no op but one on numpy arrays. Pass it as "
            "postprocessing (`pops`).",
        ):
            make([NumpyLambdaOp(first, "x", "y")])

    def test_in_postprocessing(self, make: Any) -> None:
        with raising(
            AssertionError,
            "The network's postprocessing op 0 is LambdaOp, which is no postprocessing op: it "
            "lacks ['forward_batch']. Pass a NumpyOp, or an object with the same attributes.",
        ):
            make([], [LambdaOp(first, "x", "y")])

    def test_among_slicers(self, make: Any) -> None:
        with raising(
            AssertionError,
            "The network's slicer 1 is LambdaOp, which is no slicer: it lacks ['slice_inputs', "
            "'unslice_inputs', 'slice_batches', '_unslice_batch']. Pass a Slicer, or an object "
            "with the same attributes.",
        ):
            make([], slicers=[AxisSlicer(0, "x"), LambdaOp(first, "x", "y")])

    @pytest.mark.parametrize("cls", [LambdaOp, ModelOp, TensorOp])
    def test_a_class(self, make: Any, cls: type) -> None:
        with raising(
            AssertionError,
            f"The network's op 0 is the class {cls.__name__}, which is no op. Pass an instance: "
            f"{cls.__name__}(...).",
        ):
            make([cls])


class TestMode:
    @pytest.mark.parametrize("mode", ["trian", "", "!train", None, 3])
    def test_that_there_is_not(self, mode: Any) -> None:
        network = TorchNetwork([LambdaOp(first, "x", "y")])
        with raising(
            ValueError,
            "A network runs in one of the modes ['train', 'eval', 'test', 'infer'], not in "
            f"{mode!r}.",
        ):
            network(mode=mode, epoch=1)
        assert is_free(network)


class Four:
    def __index__(self) -> int:
        return 4


class TestEpoch:
    @pytest.mark.parametrize(
        ("epoch", "error", "text"),
        [
            (0, ValueError, "0"),
            (-3, ValueError, "-3"),
            (np.int64(0), ValueError, "0"),
            (1.5, TypeError, "1.5 of type float"),
            (1.0, TypeError, "1.0 of type float"),
            (float("nan"), TypeError, "nan of type float"),
            ("2", TypeError, "'2' of type str"),
            (True, TypeError, "True of type bool"),
            (np.True_, TypeError, f"{np.True_!r} of type {type(np.True_).__name__}"),
            (None, TypeError, "None of type NoneType"),
            ([1, 2], TypeError, "[1, 2] of type list"),
            (
                np.ones((2, 3)),
                TypeError,
                "<ndarray of shape (2, 3), float64> of type ndarray",
            ),
        ],
    )
    def test_that_there_is_not(self, epoch: Any, error: type[Exception], text: str) -> None:
        network = TorchNetwork([LambdaOp(first, "x", "y")])
        older = v1.TorchNetwork([LambdaOp(first, "x", "y")])
        told = f"An epoch is a whole number from 1 up, not {text}."
        for call in (
            lambda: network("train", epoch),
            lambda: network.transform({"x": 1}, "train", epoch),
            lambda: older.load_epoch("train", epoch),
            lambda: older.get_effective_input_keys("train", epoch),
            lambda: older.get_all_output_keys("train", epoch),
        ):
            with raising(error, told):
                call()
        assert network.explain("train", epoch).error == f"{error.__name__}: {told}"
        assert is_free(network)
        assert is_free(older)

    @pytest.mark.parametrize("epoch", [4, np.int32(4), np.uint8(4), Four(), torch.tensor(4)])
    def test_is_a_plain_int_from_then_on(self, epoch: Any) -> None:
        seen: list[Any] = []

        class Look(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                seen.append(state["epoch"])
                return data

        network = TorchNetwork([EpochScheduler({4: Look("x", "y")})])
        with network("infer", epoch):
            network.run_step({"x": 1})
        assert seen == [4]
        assert type(seen[0]) is int

    def test_skips_no_op_in_silence(self) -> None:
        network = TorchNetwork([EpochScheduler({1: LambdaOp(first, "x", "y")})])
        opened = (network("infer", epoch) for epoch in range(3))
        with pytest.raises(ValueError, match="from 1 up, not 0"):
            next(opened)


class TestDesiredKeys:
    def test_a_bare_string_is_one_key(self) -> None:
        network = TorchNetwork([LambdaOp(first, "x", "loss"), LambdaOp(first, "x", "y")])
        with network(mode="infer", epoch=1, desired_output_keys="loss"):
            assert network.run_step({"x": 1}) == {"x": 1, "loss": 1}

    @pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys])
    def test_any_collection_will_do(self, kind: Any) -> None:
        network = TorchNetwork([LambdaOp(first, "x", "y"), LambdaOp(first, "x", "z")])
        with network(mode="infer", epoch=1, desired_output_keys=kind(["z"])):
            assert network.run_step({"x": 1}) == {"x": 1, "z": 1}

    def test_one_that_is_no_string(self) -> None:
        network = TorchNetwork([LambdaOp(first, "x", "y")])
        with raising(TypeError, "desired_output_keys holds 3 of type int, but keys are strings."):
            network(mode="infer", epoch=1, desired_output_keys={3})
        assert is_free(network)
