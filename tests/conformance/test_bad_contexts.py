"""Invalid ops, models and arguments: the same errors for networks of each framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fastnet
from fastnet.errors import MissingKeyError, UnknownNameError
from fastnet.op.numpyop import Batch, NumpyOp, RemoveIf
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.numpyop.meta import Fuse as NumpyFuse
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.meta import Fuse, Sometimes
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.conformance.agreement import assert_same
from tests.conformance.failures import check_free, refusing
from tests.conformance.frameworks import FRAMEWORKS, Framework, make_layers, tf
from tests.network.schedulers import MoodyScheduler, Trouble

X = np.ones((2, 3), dtype="float32")


def add_one() -> LambdaOp:
    return LambdaOp(lambda x: x + 1, "x", "y")


def check_works(fw: Framework, network: Any) -> None:
    check_free(network)
    assert_same(fw.step(network, {"x": X}), {"x": X, "y": X + 1})
    check_free(network)


class TestDatasets:
    @pytest.mark.parametrize("given", [["a"], {"a"}, 3])
    def test_an_id_that_is_no_string(self, fw: Framework, given: Any) -> None:
        network = fw.network([add_one()])
        parts = "ds_id is a string", f"not {given!r} of type {type(given).__name__}"
        for call in (
            lambda: network(mode="infer", epoch=1, ds_id=given),
            lambda: network.transform({"x": X}, "infer", ds_id=given),
            lambda: list(network.iter_transform([{"x": X}], "infer", ds_id=given)),
            lambda: list(fastnet.steps(network, [{"x": X}], "infer", ds_id=given)),
        ):
            with refusing(TypeError, *parts):
                call()
            check_works(fw, network)
        assert "TypeError: ds_id" in network.explain("infer", ds_id=given).error

    def test_none_runs_the_ops_of_every_id(self, fw: Framework) -> None:
        """As in FastEstimator."""
        ops = [
            LambdaOp(lambda x, place=place: x + place, "x", f"y{place}", ds_id=ds_id)
            for place, ds_id in enumerate([None, "a", "!a"])
        ]
        network = fw.network(ops)
        for ds_id, written in ((None, {0, 1, 2}), ("a", {0, 1}), ("", {0, 2})):
            with fw.opened(network, ds_id=ds_id):
                result = network.run_step(fw.tensors({"x": X}))
            assert set(result) == {"x", *(f"y{place}" for place in written)}


class TestEntering:
    def test_twice(self, fw: Framework) -> None:
        network = fw.network([add_one()])
        configured = fw.opened(network)
        with configured:
            parts = type(network).__name__, "is open already", "copy.copy(network)"
            for enter in (configured.__enter__, lambda: fw.opened(network, "train", 2)):
                with refusing(ValueError, *parts):
                    enter()
            assert_same(fw.arrays(network.run_step(fw.tensors({"x": X}))), {"x": X, "y": X + 1})
            assert network.ctx_state["mode"] == "infer"
        check_works(fw, network)

    def test_not_at_all(self, fw: Framework) -> None:
        network = fw.network([add_one()])
        parts = f"{type(network).__name__} is not open", "with network(mode="
        with refusing(ValueError, *parts):
            network.run_step(fw.tensors({"x": X}))
        fw.opened(network)
        with refusing(ValueError, *parts):
            network.run_step(fw.tensors({"x": X}))
        with network:
            assert_same(fw.arrays(network.run_step(fw.tensors({"x": X}))), {"x": X, "y": X + 1})
        with refusing(ValueError, *parts):
            network.run_step(fw.tensors({"x": X}))

    def test_by_an_op_of_its_own(self, fw: Framework) -> None:
        def enter(x: Any, again: str) -> Any:
            if again == "yes":
                network(mode="infer", epoch=1)
            return x + 1

        network: Any = fw.network([LambdaOp(enter, ["x", "again"], "y")])
        with refusing(ValueError, "is open already"):
            fw.step(network, {"x": X, "again": "yes"})
        check_free(network)
        assert_same(fw.step(network, {"x": X, "again": "no"})["y"], X + 1)


class TestArguments:
    @pytest.mark.parametrize(
        ("mode", "near"),
        [("trian", "train"), ("val", "eval"), ("!train", "train"), ("", ""), (3, "")],
    )
    def test_in_no_mode(self, fw: Framework, mode: Any, near: str) -> None:
        network = fw.network([add_one()])
        parts = "['train', 'eval', 'test', 'infer']", f"not in {mode!r}"
        for call in (lambda: fw.opened(network, mode), lambda: network.transform({"x": X}, mode)):
            with refusing(ValueError, *parts, f"Did you mean '{near}'?" if near else ""):
                call()
            check_works(fw, network)

    @pytest.mark.parametrize(
        ("keys", "found"), [({3}, "3 of type int"), (5, "5 of type int"), ([None], "None of type")]
    )
    def test_for_keys_that_are_no_strings(self, fw: Framework, keys: Any, found: str) -> None:
        network = fw.network([add_one()])
        with refusing(TypeError, f"desired_output_keys holds {found}"):
            fw.opened(network, desired_output_keys=keys)
        check_works(fw, network)

    def test_whose_scheduler_raises(self, fw: Framework) -> None:
        network = fw.network([MoodyScheduler(add_one())])
        with refusing(Trouble, "as told"):
            fw.opened(network, "infer", 13)
        check_works(fw, network)

    @pytest.mark.parametrize(
        ("slicers", "parts"),
        [
            ([AxisSlicer(0, "x", "y"), MeanUnslicer("y")], ["unslice the same keys: ['y']"]),
            ([AxisSlicer(0, "x", None)], ["['y'] are outputs", "epoch=2, ds_id='a'", "`unslice`"]),
        ],
        ids=["joined twice", "never joined"],
    )
    def test_with_slicers_that_clash(self, fw: Framework, slicers: Any, parts: list[str]) -> None:
        for slicer in slicers:
            slicer.mode = {"eval"}
        network = fw.network([add_one()], slicers=slicers)
        for _ in range(2):
            with refusing(ValueError, *parts):
                fw.opened(network, "eval", 2, ds_id="a")
            check_works(fw, network)


class NoSuper(TensorOp):
    def __init__(self) -> None:
        self.factor = 2


class NoState(TensorOp):
    def forward(self, data: Any) -> Any:  # type: ignore[override]
        return data


class TestParts:
    def test_a_class_for_an_op(self, fw: Framework) -> None:
        for ops in ([LambdaOp], LambdaOp, [EpochScheduler({1: LambdaOp})]):
            with refusing(AssertionError, "op 0 is the class LambdaOp", "LambdaOp(...)"):
                fw.network(ops)

    @pytest.mark.parametrize(
        ("item", "parts"),
        [
            (3, ["int, not a TensorOp"]),
            ("word", ["str, not a TensorOp"]),
            (AxisSlicer(0, "x"), ["AxisSlicer, not a TensorOp", "'inputs'", "'forward'"]),
            (NumpyLambdaOp(len, "x", "y"), ["LambdaOp, not a TensorOp", "as postprocessing"]),
            (add_one, ["function, not a TensorOp", "LambdaOp(add_one, inputs="]),
            (NoSuper(), ["NoSuper", "does not call super().__init__"]),
        ],
        ids=["int", "str", "slicer", "numpy op", "function", "no super"],
    )
    def test_no_op(self, fw: Framework, item: Any, parts: list[str]) -> None:
        for index, ops in ((1, [None, add_one(), item]), (0, [RepeatScheduler([item, None])])):
            with refusing(AssertionError, f"The network's op {index} is {parts[0]}", *parts[1:]):
                fw.network(ops)

    def test_a_model_for_an_op(self, fw: Framework) -> None:
        model = fw.make_model(make_layers(3, 2))
        for given in (model, fw.dense_layers(model)[0]):
            name = type(given).__name__
            with refusing(AssertionError, f"op 1 is {name}", "ModelOp(fastnet.build("):
                fw.network([add_one(), given])
        with refusing(AssertionError, "op 0 is Sequential", "ModelOp(model, "):
            fw.network([fastnet.build(lambda: model, None)])

    def test_a_forward_without_state(self, fw: Framework) -> None:
        parts = "NoState (op 1, inputs ['x'], outputs ['y'])", "forward(self, data, state)"
        for op in (NoState("x", "y"), EpochScheduler({1: NoState("x", "y")})):
            with refusing(TypeError, *parts):
                fw.network([add_one(), op])

    def test_parts_of_an_op_that_runs_others(self, fw: Framework) -> None:
        layer = fw.dense_layers(fw.make_model(make_layers(3, 2)))[0]
        for wrap, name in ((lambda op: Fuse([op]), "Fuse"), (Sometimes, "Sometimes")):
            with refusing(TypeError, f"The op 0 of {name} is", "does not call super().__init__"):
                wrap(NoSuper())
            with refusing(TypeError, f"The op 0 of {name} is", "ModelOp(fastnet.build("):
                wrap(layer)
            with refusing(TypeError, "NoState (op 0, inputs ['x']", "forward(self, data, state)"):
                fw.network([add_one(), wrap(NoState("x", "x"))])
        with refusing(
            TypeError, "The op 0 of Fuse is LambdaOp, not a NumpyOp", "['forward_batch']"
        ):
            NumpyFuse([add_one()])
        fuse = Fuse([add_one(), LambdaOp(lambda value: value, "predicted", "z")])
        fuse.ops[0].outputs = ["predictd"]
        with refusing(MissingKeyError, "reads the key 'predicted'", "Did you mean 'predictd'"):
            fw.step(fw.network([fuse]), {"x": X})

    def test_the_keys_of_one_of_several_losses(self, fw: Framework) -> None:
        losses = [MeanSquaredError(("x", "y"), f"loss{index}") for index in range(3)]
        network = fw.network([add_one(), *losses])
        for name, value, kind in (("mode", "t", AssertionError), ("inputs", ["x"], ValueError)):
            before = getattr(losses[1], name)
            setattr(losses[1], name, value)
            with refusing(kind, "Raised by MeanSquaredError (op 2, "):
                fw.step(network, {"x": X})
            setattr(losses[1], name, before)

    def test_an_item_in_the_wrong_list(self, fw: Framework) -> None:
        with refusing(AssertionError, "slicer 0 is LambdaOp", "'slice_inputs'"):
            fw.network([], slicers=add_one())
        with refusing(AssertionError, "LambdaOp (op 0, ", "not a postprocessing op"):
            fw.network([], [add_one()])
        with refusing(AssertionError, "postprocessing op 0 is the class NumpyOp", "NumpyOp(...)"):
            fw.network([], [NumpyOp])

    def test_ops_that_change_what_a_batch_is(self, fw: Framework) -> None:
        drops, makes = RemoveIf(lambda x, y: True, inputs=["x", "y"]), Batch(batch_size=3)
        for wrap in (lambda op: [None, op], lambda op: RepeatScheduler([None, op])):
            with refusing(ValueError, "RemoveIf (op 0, inputs ['x', 'y']) drops samples"):
                fw.network([add_one()], wrap(drops))
            with refusing(ValueError, "Batch (op 0) makes batches"):
                fw.network([add_one()], wrap(makes))


class TestModels:
    @pytest.mark.parametrize("names", [("same", "same"), ("Model", "model")])
    def test_of_one_name(self, fw: Framework, names: tuple[str, str]) -> None:
        models = [fw.build(make_layers(3, 2), name=name) for name in names]
        for make in (fw.network, fastnet.Network):
            with refusing(AssertionError, f"'{names[0]}' and '{names[1]}'", "model_name"):
                make([ModelOp(model, "x", "y") for model in models])

    def test_of_two_frameworks(self, fw: Framework) -> None:
        pytest.importorskip("tensorflow")
        other = FRAMEWORKS["tf-static" if fw.target == "torch" else "torch"]
        models = [
            fw.build(make_layers(3, 2), fw.sgd(), name="own"),
            other.build(make_layers(3, 2), other.sgd(), name="alien"),
        ]
        both = f"{{'{fw.target}': ['own'], '{other.target}': ['alien']}}"
        with refusing(AssertionError, "several frameworks", both):
            fastnet.Network([ModelOp(model, "x", "y") for model in models])
        alien = models[1]
        for op in (ModelOp(alien, "x", "y"), UpdateOp(alien, "loss")):
            name = type(op).__name__
            with refusing(ValueError, f"{name} of 'alien'", f"'{other.target}'", f"'{fw.target}'"):
                fw.network([add_one(), op])
        chosen = fastnet.Network([ModelOp(models[0], "x", "y")])
        assert type(chosen) is fw.network_class

    def test_of_mixed_precision_for_some(self, fw: Framework) -> None:
        models = [
            fw.build(make_layers(3, 2), name=name, mixed_precision=name in "bd") for name in "abcd"
        ]
        with refusing(ValueError, "mixed_precision", "'a': False", "'b': True"):
            fw.network([ModelOp(model, "x", "y") for model in models])


class TestBuild:
    def test_an_optimizer_of_the_other_framework(self, fw: Framework) -> None:
        """FastEstimator's users expect a ValueError of one, and an AssertionError of another."""
        pytest.importorskip("tensorflow")
        own = torch.nn.Parameter(torch.ones(1))
        others = {
            "torch": [
                tf.keras.optimizers.SGD,
                lambda parameters: tf.keras.optimizers.SGD(),
                lambda: tf.keras.optimizers.SGD(),
                tf.keras.optimizers.SGD(),
            ],
            "tf": [
                torch.optim.SGD,
                lambda: torch.optim.SGD([own], lr=0.1),
                lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                torch.optim.SGD([own], lr=0.1),
            ],
        }[fw.target]
        for source in others:
            for kind in (ValueError, AssertionError):
                with pytest.raises(kind, match="The optimizer_fn of model 'm'"):
                    fw.build(make_layers(3, 2), source, name="m")

    def test_an_optimizer_of_no_name(self, fw: Framework) -> None:
        for source in ("sdg", EpochScheduler({1: "sgd", 2: "sdg"})):
            parts = (
                "model 'm' is called 'sdg'",
                "'adamw'",
                "'nadam'",
                "Did you mean 'sgd'?",
                "lambda",
            )
            with refusing(UnknownNameError, *parts):
                fw.build(make_layers(3, 2), source, name="m")
