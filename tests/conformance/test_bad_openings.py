"""What is wrong with a network, with its models, or with the way it is opened."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch")

import fastnet
from fastnet.errors import MissingKeyError, UnknownNameError, WrongOptimizerError
from fastnet.op.numpyop import Batch, NumpyOp, RemoveIf
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer, SlidingSlicer
from tests.conformance.agreement import assert_same
from tests.conformance.failures import check_free, raising
from tests.conformance.frameworks import FRAMEWORKS, Framework, make_layers
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
        text = (
            'The ds_id of an opening is one string, "" for data without an id, or None for the ops '
            f"of every id, not {given!r} of type {type(given).__name__}."
        )
        for call in (
            lambda: network(mode="infer", epoch=1, ds_id=given),
            lambda: network.transform({"x": X}, "infer", ds_id=given),
            lambda: list(network.iter_transform([{"x": X}], "infer", ds_id=given)),
            lambda: list(fastnet.steps(network, [{"x": X}], "infer", ds_id=given)),
        ):
            with raising(TypeError, text):
                call()
            check_works(fw, network)
        assert f"TypeError: {text}" in network.explain("infer", ds_id=given).error

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
        name = type(network).__name__
        configured = fw.opened(network)
        with configured:
            with raising(
                ValueError,
                f"This {name} is in use: it can only be entered once at a time. Leave it first, or "
                "make a second network of the same ops.",
            ):
                configured.__enter__()
            with raising(
                ValueError,
                f"This {name} is in use: it was entered and not left. Leave it before you "
                "configure it anew, or make a second network of the same ops.",
            ):
                fw.opened(network, "train", 2)
            assert_same(fw.arrays(network.run_step(fw.tensors({"x": X}))), {"x": X, "y": X + 1})
            assert network.ctx_state["mode"] == "infer"
        check_works(fw, network)

    def test_not_at_all(self, fw: Framework) -> None:
        network = fw.network([add_one()])
        text = (
            f"run_step needs an entered {type(network).__name__}. Write "
            '`with network(mode="train", epoch=1, ds_id=""):` around it.'
        )
        with raising(ValueError, text):
            network.run_step(fw.tensors({"x": X}))
        fw.opened(network)
        with raising(ValueError, text):
            network.run_step(fw.tensors({"x": X}))
        check_works_after_configuring(fw, network)
        with raising(ValueError, text):
            network.run_step(fw.tensors({"x": X}))

    def test_without_being_configured(self, fw: Framework) -> None:
        network = fw.network([add_one()])
        text = (
            f"This {type(network).__name__} was entered without being configured. Write "
            '`with network(mode="train", epoch=1, ds_id=""):` around run_step.'
        )
        for _ in range(2):
            with network, raising(ValueError, text):
                network.run_step(fw.tensors({"x": X}))
            check_works(fw, network)

    def test_by_an_op_of_its_own(self, fw: Framework) -> None:
        def enter(x: Any, again: str) -> Any:
            if again == "yes":
                network(mode="infer", epoch=1)
            return x + 1

        network: Any = fw.network([LambdaOp(enter, ["x", "again"], "y")])
        with pytest.raises(ValueError, match="it was entered and not left"):
            fw.step(network, {"x": X, "again": "yes"})
        check_free(network)
        assert_same(fw.step(network, {"x": X, "again": "no"})["y"], X + 1)

    def test_one_network_inside_another(self, fw: Framework) -> None:
        inner = fw.network([add_one()])

        def use(x: Any) -> Any:
            with fw.opened(inner):
                return inner.run_step({"x": x})["y"] * 2

        outer = fw.network([LambdaOp(use, "x", "y")])
        for _ in range(2):
            assert_same(fw.step(outer, {"x": X}), {"x": X, "y": (X + 1) * 2})
        check_works(fw, inner)


def check_works_after_configuring(fw: Framework, network: Any) -> None:
    with network:
        assert_same(fw.arrays(network.run_step(fw.tensors({"x": X}))), {"x": X, "y": X + 1})


class TestOpening:
    @pytest.mark.parametrize("mode", ["trian", "", "!train", None, 3])
    def test_in_no_mode(self, fw: Framework, mode: Any) -> None:
        network = fw.network([add_one()])
        with raising(
            ValueError,
            "A network runs in one of the modes ['train', 'eval', 'test', 'infer'], not in "
            f"{mode!r}.",
        ):
            fw.opened(network, mode)
        check_works(fw, network)
        with pytest.raises(ValueError, match="A network runs in one of the modes"):
            network.transform({"x": X}, mode)
        check_works(fw, network)

    @pytest.mark.parametrize(("keys", "shown"), [({3}, "3 of type int"), ([None], "None of type")])
    def test_for_keys_that_are_no_strings(self, fw: Framework, keys: Any, shown: str) -> None:
        network = fw.network([add_one()])
        for _ in range(2):
            with pytest.raises(TypeError) as caught:
                fw.opened(network, desired_output_keys=keys)
            assert type(caught.value) is TypeError
            assert re.fullmatch(
                f"desired_output_keys holds {shown}.*, but keys are strings\\.", str(caught.value)
            )
            check_works(fw, network)

    def test_whose_scheduler_raises(self, fw: Framework) -> None:
        network = fw.network([MoodyScheduler(add_one())])
        for _ in range(2):
            with raising(Trouble, "as told"):
                fw.opened(network, "infer", 13)
            check_works(fw, network)

    def test_whose_scheduler_of_optimizers_raises(self, fw: Framework) -> None:
        model = fw.build(make_layers(3, 2), MoodyScheduler(fw.sgd(0.1)))
        network = fw.network([add_one(), ModelOp(model, "x", "z")])
        for _ in range(2):
            with raising(Trouble, "as told"), fw.opened(network, "train", 13):
                pass
            check_free(network)
        assert_same(fw.step(network, {"x": X})["y"], X + 1)

    @pytest.mark.parametrize(
        ("slicers", "text"),
        [
            (
                [AxisSlicer(0, "x", None), AxisSlicer(1, ["w", "x"], None), MeanUnslicer("y")],
                "Multiple slicers slice the same keys: ['x'], AxisSlicer among them. Let one "
                "slicer cut each key.",
            ),
            (
                [AxisSlicer(0, "x", "y"), MeanUnslicer("y")],
                "Multiple slicers un-slice the same keys: ['y'], MeanUnslicer among them. Let one "
                "slicer put each key together.",
            ),
            (
                [MeanUnslicer(["y", "x"])],
                "The keys ['x', 'y'] are to be un-sliced, but no active slicer slices anything. "
                "Give a slicer keys to `slice`, or restrict both to the same mode and ds_id.",
            ),
            (
                [AxisSlicer(0, "x", None)],
                "The keys ['y'] are wanted after the step, but slicers leave them in pieces: no "
                "slicer un-slices them (mode='eval', epoch=2, ds_id='a'). Name each of them in the "
                "`unslice` of the slicer that cuts, to have its pieces joined, or of a "
                "MeanUnslicer, to have their mean, or leave it out of desired_output_keys.",
            ),
        ],
        ids=["cut twice", "joined twice", "never cut", "never joined"],
    )
    def test_with_slicers_that_clash(self, fw: Framework, slicers: Any, text: str) -> None:
        for slicer in slicers:
            slicer.mode = {"eval"}
        network = fw.network([add_one()], slicers=slicers)
        for _ in range(2):
            with raising(ValueError, text):
                fw.opened(network, "eval", 2, ds_id="a")
            check_works(fw, network)


class TestParts:
    @pytest.mark.parametrize("cls", [LambdaOp, ModelOp, TensorOp])
    def test_a_class_for_an_op(self, fw: Framework, cls: type) -> None:
        for ops in ([cls], cls, [EpochScheduler({1: cls})]):
            with raising(
                AssertionError,
                f"The network's op 0 is the class {cls.__name__}, which is no op. Pass an "
                f"instance: {cls.__name__}(...).",
            ):
                fw.network(ops)

    @pytest.mark.parametrize(
        ("item", "text"),
        [
            (3, "int, which is no op."),
            ("word", "str, which is no op."),
            (
                AxisSlicer(0, "x"),
                "AxisSlicer, which is no op: it lacks ['inputs', 'outputs', 'in_list', "
                "'out_list', 'forward'].",
            ),
        ],
        ids=["int", "str", "slicer"],
    )
    def test_no_op(self, fw: Framework, item: Any, text: str) -> None:
        advice = "Pass a TensorOp, or an object with the same attributes."
        for place, ops in ((1, [None, add_one(), item]), (0, [RepeatScheduler([item, None])])):
            with raising(AssertionError, f"The network's op {place} is {text} {advice}"):
                fw.network(ops)

    def test_a_numpy_op_among_ops(self, fw: Framework) -> None:
        with raising(
            AssertionError,
            "The network's op 1 is LambdaOp, which is no op but one on numpy arrays. Pass it as "
            "postprocessing (`pops`).",
        ):
            fw.network([add_one(), NumpyLambdaOp(lambda x: x, "x", "y")])

    def test_a_tensor_op_in_postprocessing(self, fw: Framework) -> None:
        with raising(
            AssertionError,
            "The network's postprocessing op 0 is LambdaOp, which is no postprocessing op: it "
            "lacks ['forward_batch']. Pass a NumpyOp, or an object with the same attributes.",
        ):
            fw.network([], [add_one()])
        with raising(
            AssertionError,
            "The network's postprocessing op 0 is the class NumpyOp, which is no postprocessing "
            "op. Pass an instance: NumpyOp(...).",
        ):
            fw.network([], [NumpyOp])

    def test_no_slicer(self, fw: Framework) -> None:
        with raising(
            AssertionError,
            "The network's slicer 0 is LambdaOp, which is no slicer: it lacks ['slice_inputs', "
            "'unslice_inputs', 'slice_batches', '_unslice_batch']. Pass a Slicer, or an object "
            "with the same attributes.",
        ):
            fw.network([], slicers=add_one())

    @pytest.mark.parametrize("scheduled", [False, True])
    def test_ops_that_change_what_a_batch_is(self, fw: Framework, scheduled: bool) -> None:
        def wrapped(op: Any) -> Any:
            return RepeatScheduler([None, op]) if scheduled else [None, op]

        with raising(
            ValueError,
            "RemoveIf (op 0, inputs ['x', 'y']) drops samples, which postprocessing cannot do: "
            "the network's results are already made. Filter in the data pipeline.",
        ):
            fw.network([add_one()], wrapped(RemoveIf(lambda x, y: True, inputs=["x", "y"])))
        with raising(
            ValueError,
            "Batch (op 0) makes batches, but postprocessing gets batches. Leave it out, or use "
            "it in the data pipeline.",
        ):
            fw.network([add_one()], wrapped(Batch(batch_size=3)))

    def test_windows(self, fw: Framework) -> None:
        with raising(
            AssertionError,
            "SlidingSlicer's pad_mode is one of ['drop', 'partial', 'constant', 'nopad', "
            "'mirror'], but got 'reflect'.",
        ):
            fw.network([], slicers=[SlidingSlicer([2], slice="x", pad_mode="reflect")])


class TestModels:
    @pytest.mark.parametrize(
        ("names", "text"),
        [
            (
                ("same", "same"),
                "Two models are called 'same', so that their files would be the same. Pass "
                "fastnet.build another model_name for one of them.",
            ),
            (
                ("Model", "model"),
                "Two models are called 'Model' and 'model', which are one name on a file system "
                "that takes upper and lower case as the same. Pass fastnet.build a model_name for "
                "each.",
            ),
        ],
    )
    def test_of_one_name(self, fw: Framework, names: tuple[str, str], text: str) -> None:
        models = [fw.build(make_layers(3, 2), name=name) for name in names]
        for make in (fw.network, fastnet.Network):
            with raising(AssertionError, text):
                make([ModelOp(model, "x", "y") for model in models])

    def test_of_two_frameworks(self, fw: Framework) -> None:
        other = FRAMEWORKS["tf-static" if fw.target == "torch" else "torch"]
        models = [
            fw.build(make_layers(3, 2), fw.sgd(), name="own"),
            other.build(make_layers(3, 2), other.sgd(), name="alien"),
        ]
        with raising(
            AssertionError,
            f"The ops hold models of several frameworks: {{'{fw.target}': ['own'], "
            f"'{other.target}': ['alien']}}. Make a network for each.",
        ):
            fastnet.Network([ModelOp(model, "x", "y") for model in models])
        alien = models[1]
        for op in (ModelOp(alien, "x", "y"), UpdateOp(alien, "loss")):
            with raising(
                ValueError,
                f"{type(op).__name__} of 'alien' holds a model of framework '{other.target}', but "
                f"its network runs on '{fw.target}'. Put models of one framework into a network.",
            ):
                fw.network([add_one(), op])
        chosen = fastnet.Network([ModelOp(models[0], "x", "y")])
        assert type(chosen) is fw.network_class

    def test_of_mixed_precision_for_some(self, fw: Framework) -> None:
        models = [
            fw.build(make_layers(3, 2), name=name, mixed_precision=name in "bd") for name in "abcd"
        ]
        with raising(
            ValueError,
            "The models ['b', 'd'] have mixed precision and ['a', 'c'] have not, but the models "
            "of a network must agree. Build all of them with the same mixed_precision.",
        ):
            fw.network([ModelOp(model, "x", "y") for model in models])

    def test_that_were_not_built(self, fw: Framework) -> None:
        model = fw.make_model(make_layers(3, 2))
        for kind in (ModelOp, UpdateOp):
            with raising(
                AssertionError,
                f"{kind.__name__} takes a model that fastnet.build has made ready, but this "
                "Sequential is not. Pass it through fastnet.build first.",
            ):
                kind(model, "x")


class TestOpArguments:
    def test_of_model_ops(self, fw: Framework) -> None:
        model = fw.build(make_layers(3, 4, 2), name="m")
        with raising(
            AssertionError,
            "ModelOp of 'm' is trainable, so gradients must be True. Pass trainable=False to run "
            "the model without them.",
        ):
            ModelOp(model, "x", "y", gradients=False)
        with raising(
            ValueError,
            "ModelOp of 'm' writes the model's output and those of the intermediate layers "
            "[0, 1], but its outputs are ['y', 'z']. Name a key for each: the model's first, "
            "then one a layer.",
        ):
            fw.network([ModelOp(model, "x", ["y", "z"], intermediate_layers=[0, 1])])
        with raising(
            ValueError,
            "ModelOp of 'm' asks for the intermediate layer 1.5 of type float. Give names or "
            "places.",
        ):
            ModelOp(model, "x", ["y", "z"], intermediate_layers=1.5)  # type: ignore[arg-type]
        with pytest.raises(
            MissingKeyError,
            match="intermediate_layers asks for the layer 'nowhere' of Sequential, which has none "
            "of this name",
        ):
            ModelOp(model, "x", ["y", "z"], intermediate_layers="nowhere")

    def test_of_update_ops(self, fw: Framework) -> None:
        model = fw.build(make_layers(3, 2), fw.sgd(), name="m")
        for merge in (0, -1):
            with raising(
                ValueError,
                f"UpdateOp of 'm' has merge_grad={merge}; it is an int, and the least is 1.",
            ):
                UpdateOp(model, "loss", merge_grad=merge)
        mixed = fw.build(make_layers(3, 2), fw.sgd(), name="m", mixed_precision=True)
        with raising(
            ValueError,
            "UpdateOp of 'm' is given the gradients 'g', but the model has mixed precision, where "
            "the loss is scaled before its gradients are taken. Leave `gradients` out, or build "
            "the model with mixed_precision=False.",
        ):
            UpdateOp(mixed, "loss", gradients="g")

    def test_of_losses(self, fw: Framework) -> None:
        with raising(
            ValueError,
            "CrossEntropy reads two keys, the predictions and the truth, but its inputs are ['y'].",
        ):
            fw.network([CrossEntropy(["y"], "loss")])


class TestBuild:
    def test_an_optimizer_of_no_name(self, fw: Framework) -> None:
        example = {
            "torch": "`lambda params: torch.optim.AdamW(params, lr=1e-3)`",
            "tf": "`lambda: tf.keras.optimizers.AdamW(1e-3)`",
        }[fw.target]
        for source in ("sdg", EpochScheduler({1: "sgd", 2: "sdg"})):
            with pytest.raises(UnknownNameError) as caught:
                fw.build(make_layers(3, 2), source, name="m")
            # which there are follows the framework's version
            before, names, after = re.split(r"[\[\]]", str(caught.value))
            assert before == "The optimizer of model 'm' is called 'sdg', but the names are "
            assert {"'adadelta'", "'adamw'", "'nadam'", "'sgd'"} <= set(names.split(", "))
            assert after == (
                f". Did you mean 'sgd'? For any other pass a function, such as {example}."
            )

    def test_an_optimizer_that_is_none(self, fw: Framework) -> None:
        arguments = {
            "torch": "a function of the model's parameters, such as "
            "`lambda params: torch.optim.Adam(params, lr=1e-3)`",
            "tf": "a function without arguments, such as `lambda: keras.optimizers.Adam(1e-3)`",
        }[fw.target]
        with raising(
            WrongOptimizerError,
            f"The optimizer_fn of model 'm' is of type int. Pass a name; {arguments}; a scheduler "
            "of these; or None.",
        ):
            fw.build(make_layers(3, 2), 3, name="m")
        kind = {"torch": "torch", "tf": "Keras"}[fw.target]
        with raising(
            WrongOptimizerError,
            f"The optimizer_fn of model 'm' returned str, not a {kind} optimizer.",
        ):
            fw.build(make_layers(3, 2), lambda *parameters: "text", name="m")

    def test_an_optimizer_that_cannot_be_made(self, fw: Framework) -> None:
        def fail(*parameters: Any) -> Any:
            raise Trouble("as told")

        advice = {
            "torch": "failed on the model's parameters: Trouble('as told'). For a torch model it "
            "takes one argument, the parameters, and returns a torch optimizer.",
            "tf": "failed: Trouble('as told'). For a Keras model it takes no argument, and returns "
            "a Keras optimizer.",
        }[fw.target]
        with raising(WrongOptimizerError, f"The optimizer_fn of model 'm' {advice}"):
            fw.build(make_layers(3, 2), fail, name="m")

    def test_an_optimizer_of_the_other_framework(self, fw: Framework) -> None:
        """FastEstimator's users expect a ValueError of one, and an AssertionError of another."""
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

    def test_numbers_that_do_not_match(self, fw: Framework) -> None:
        with raising(
            AssertionError,
            "model_fn makes 1 models, but there are 2 optimizers, 1 weights paths and 1 names. "
            "Give one of each for each model.",
        ):
            fw.build(make_layers(3, 2), ["sgd", "adam"])

    def test_no_model(self, fw: Framework) -> None:
        made = fw.make_model(make_layers(3, 2))
        with raising(
            ValueError,
            "model_fn made int, which is no model of a known framework. Let it return a "
            "torch.nn.Module or a Keras model, or a sequence of them.",
        ):
            fastnet.build(lambda: [made, 3], ["sgd", "sgd"])
