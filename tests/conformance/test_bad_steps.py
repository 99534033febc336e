"""Steps that fail: the same errors in each framework, after which the network still works."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from fastnet.errors import MissingKeyError
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler
from fastnet.slicer import AxisSlicer, SlidingSlicer
from tests.conformance.agreement import assert_same
from tests.conformance.failures import check_failing_step, check_free, notes_of, refusing, words_of
from tests.conformance.frameworks import Framework, TakeGradients, make_layers
from tests.conformance.oracle import Line, make_batches
from tests.conformance.test_training import regression
from tests.network.schedulers import Trouble

X = np.ones((2, 3), dtype="float32")
IN_POSTPROCESSING = "This was in the network's postprocessing."


def first(x: Any, *more: Any) -> Any:
    return x


def test_a_batch_that_is_no_mapping(fw: Framework) -> None:
    network, tensor = fw.network([LambdaOp(first, "x", "z")]), fw.tensor(X)
    pairs = "in torch, `batch = dict(zip(", "in TensorFlow, `dataset = dataset.map("
    batches: list[tuple[Any, tuple[str, ...]]] = [
        *[(batch, ()) for batch in (["x"], {"x"}, "x", None, 3)],
        *[(batch, pairs) for batch in ([tensor, tensor], (tensor, tensor))],
        *[(array, ('`{"x": x}`',)) for array in (X, tensor)],
        (iter([{"x": tensor}]), ("for batch in loader: network.run_step",)),
    ]
    with fw.opened(network):
        for batch, parts in batches:
            name = type(batch).__name__
            with refusing(TypeError, f"a dict of values by key, but got {name}.", *parts):
                network.run_step(batch)
        assert_same(fw.arrays(network.run_step(fw.tensors({"x": X})))["x"], X)
    with refusing(TypeError, *pairs):
        network.transform([(tensor, tensor)], "infer")


class TestMissingKey:
    @pytest.mark.parametrize(
        ("keys", "there", "hint"),
        [
            (["image", "y", "labels", "z"], ["image", "label"], "Did you mean 'label'?"),
            (["x", "score", "scores", "z"], ["x"], "'score', which LambdaOp (op 0, inputs ['x']"),
            (["x", "a", "y", "z"], ["x"], "['a'] from earlier ops"),
        ],
        ids=["of the batch", "of an op", "of none"],
    )
    def test_misspelled(self, fw: Framework, keys: list[str], there: list[str], hint: str) -> None:
        source, written, missed, last = keys
        check_failing_step(
            fw,
            fw.network([LambdaOp(first, source, written), LambdaOp(first, missed, last)]),
            dict.fromkeys(there, X),
            {source: X, missed: X},
            {written: X, last: X},
            MissingKeyError,
            f"LambdaOp (op 1, inputs ['{missed}'], outputs ['{last}'])",
            f"the key '{missed}'",
            f"{there}",
            hint,
        )

    def test_that_comes_too_late(self, fw: Framework) -> None:
        check_failing_step(
            fw,
            fw.network([LambdaOp(first, "y", "z"), LambdaOp(lambda x: x + 1, "x", "y")]),
            {"x": X},
            {"x": X, "y": X * 3},
            {"x": X, "y": X + 1, "z": X * 3},
            MissingKeyError,
            "LambdaOp (op 0, inputs ['y'], outputs ['z']) reads the key 'y'",
            "LambdaOp (op 1, inputs ['x'], outputs ['y']) writes it later.",
        )

    @pytest.mark.parametrize(
        ("limits", "why"),
        [
            ({"mode": ["train", "test"]}, "runs in mode 'train' or 'test' only"),
            ({"ds_id": "digits"}, "runs for ds_id 'digits' only"),
            ({"ds_id": "!digit"}, "does not run for ds_id 'digit'"),
            ({}, "EpochScheduler does not select it in this epoch"),
        ],
    )
    def test_that_an_op_writes_which_does_not_run(
        self, fw: Framework, limits: dict[str, Any], why: str
    ) -> None:
        writer: Any = LambdaOp(first, "x", "y", **limits)
        if not limits:
            writer = EpochScheduler({1: None, 2: writer})
        network = fw.network([writer, LambdaOp(first, "y", "z")])
        parts = (
            "LambdaOp (op 0, inputs ['y'], outputs ['z']) reads the key 'y'",
            f"LambdaOp (inputs ['x'], outputs ['y']) writes it, but {why}",
        )
        with refusing(MissingKeyError, *parts), fw.opened(network, "infer", ds_id="digit"):
            network.run_step(fw.tensors({"x": X}))
        check_free(network)
        with fw.opened(network, "train", 2, ds_id="digits"):
            assert_same(fw.arrays(network.run_step(fw.tensors({"x": X})))["z"], X)

    @pytest.mark.parametrize("key", ["x", "y"])
    def test_that_was_deleted(self, fw: Framework, key: str) -> None:
        """From what ops write, or from the batch."""
        network = fw.network([LambdaOp(first, "w", "y"), Delete(key), LambdaOp(first, key, "z")])
        parts = (
            f"LambdaOp (op 2, inputs ['{key}'], outputs ['z'])",
            f"the key '{key}'",
            f"Delete (op 1, inputs ['{key}']) has deleted",
        )
        for _ in range(2):
            with refusing(MissingKeyError, *parts):
                fw.step(network, {"w": X, "x": X})
            check_free(network)

    def test_of_postprocessing(self, fw: Framework) -> None:
        check_failing_step(
            fw,
            fw.network([LambdaOp(first, "x", "y")], [NumpyLambdaOp(first, ["y", "w"], "z")]),
            {"x": X},
            {"x": X, "w": X},
            {"x": X, "w": X, "y": X, "z": X},
            MissingKeyError,
            "LambdaOp (op 0, inputs ['y', 'w'], outputs ['z']) reads the key 'w'",
            "['x', 'y']",
            IN_POSTPROCESSING,
        )


class TestInputs:
    """Notes on values that an op that failed may not have expected."""

    @pytest.mark.parametrize(
        ("value", "text"),
        [(None, "None"), ((1.0, 2.0), "a tuple of 2 "), ([1.0], "a list of 1 ")],
    )
    def test_that_an_op_wrote(self, fw: Framework, value: Any, text: str) -> None:
        writer = LambdaOp(lambda x, ok: x if ok == "yes" else value, ["x", "ok"], "y")
        check_failing_step(
            fw,
            fw.network([writer, LambdaOp(lambda y: y.shape and y * 2, "y", "z")]),
            {"x": X, "ok": "no"},
            {"x": X, "ok": "yes"},
            {"x": X, "ok": "yes", "y": X, "z": X * 2},
            AttributeError,
            "Raised by LambdaOp (op 1, inputs ['y'], outputs ['z']).",
            f"The value of 'y' is {text}",
            "as LambdaOp (op 0, inputs ['x', 'ok'], outputs ['y']) returned it",
        )

    @pytest.mark.parametrize(
        ("value", "text"), [(None, "None"), ([1.0, 2.0, 3.0], "a list of 3 "), ([], "a list of 0 ")]
    )
    def test_of_the_batch(self, fw: Framework, value: Any, text: str) -> None:
        check_failing_step(
            fw,
            fw.network([LambdaOp(lambda x: x.shape and x * 2, "x", "z")]),
            {"x": value},
            {"x": X},
            {"x": X, "z": X * 2},
            AttributeError,
            f"The batch's 'x' is {text}",
            "Pass a tensor or an array.",
        )

    @pytest.mark.parametrize(
        ("keys", "advice"), [(["x"], "pass inputs='x'"), (["x", "x"], "unpack it")]
    )
    def test_in_a_list(self, fw: Framework, keys: list[str], advice: str) -> None:
        class Own(TensorOp):
            def forward(self, data: Any, state: Any) -> Any:
                return data.shape

        with refusing(
            AttributeError, f"Its `data` is a list, because its inputs are the list {keys}", advice
        ):
            fw.step(fw.network([Own(keys, "y")]), {"x": X})


@pytest.mark.parametrize("kind", [Trouble, KeyError, AttributeError, StopIteration, RuntimeError])
def test_errors_of_ops_keep_their_type_and_arguments(fw: Framework, kind: type[Exception]) -> None:
    def fail(x: Any, ok: str) -> Any:
        if ok != "yes":
            raise kind("a text", {"of": ["parts", 1]})
        return x

    network = fw.network([LambdaOp(fail, ["x", "ok"], "y")])
    for _ in range(2):
        with pytest.raises(kind) as caught:
            fw.step(network, {"x": X, "ok": "no"})
        assert type(caught.value) is kind
        if sys.version_info >= (3, 11):
            assert caught.value.args == ("a text", {"of": ["parts", 1]})
            notes, parts = words_of(caught.value)[1:], notes_of(fw, "LambdaOp (op 0, inputs ['x',")
            assert all(part in note for part, note in zip(parts, notes, strict=True))
        check_free(network)
    assert_same(fw.step(network, {"x": X, "ok": "yes"}), {"x": X, "ok": "yes", "y": X})


@pytest.mark.parametrize(
    ("fn", "slicers", "bad", "good", "kind", "parts"),
    [
        (
            lambda fw, x, w: x,
            [AxisSlicer(0, slice="x", unslice="y"), AxisSlicer(1, slice=["w"], unslice=None)],
            {"x": X, "w": X},
            {"x": X, "w": X.T},
            ValueError,
            ["AxisSlicer made 2 of ['x'], AxisSlicer made 3 of ['w']"],
        ),
        (
            lambda fw, x, w: x,
            AxisSlicer(2, slice="x", unslice="y"),
            {"x": X, "w": 1},
            {"x": X[None], "w": 1},
            IndexError,
            ["axis 2, but got data of shape (2, 3)", "Raised by AxisSlicer while it sliced"],
        ),
        (
            lambda fw, x, w: fw.mean(x) if w else x,
            AxisSlicer(1, slice="x", unslice="y"),
            {"x": X, "w": 1},
            {"x": X, "w": 0},
            IndexError,
            ["a new axis 1", "MeanUnslicer", "Raised by AxisSlicer while it unsliced 'y'."],
        ),
        (
            lambda fw, x, w: x[:, w:],
            SlidingSlicer([1, -1], slice="x", unslice=["y"]),
            {"x": X, "w": 1},
            {"x": X, "w": 0},
            ValueError,
            ["'y': a slice of shape [1, 2]", "unslice_shape", "while it unsliced 'y'."],
        ),
    ],
    ids=["numbers", "no axis", "no new axis", "no window"],
)
def test_slicers_that_do_not_fit(
    fw: Framework,
    fn: Any,
    slicers: Any,
    bad: Any,
    good: Any,
    kind: type[Exception],
    parts: list[str],
) -> None:
    op = LambdaOp(partial(fn, fw), ["x", "w"], "y")
    network = fw.network([op], slicers=slicers)
    check_failing_step(fw, network, bad, good, {"y": good["x"]}, kind, *parts)


class Case:
    """A linear model, the numbers it must come to, and a network that a test spoils."""

    def __init__(self, fw: Framework, optimizer: Any = None) -> None:
        layers = make_layers(3, 2)
        self.line = Line(*layers[0])
        self.model = fw.build(layers, optimizer or fw.sgd(0.1), name="m")
        self.fw = fw

    def supervised(self, *between: Any, **update: Any) -> list[Any]:
        *ops, last = regression(self.model, **update)
        return [*ops, *between, last]

    def check_trains(self, network: Any, epoch: int = 1, rate: float = 0.1, **extra: Any) -> None:
        for batch in make_batches(2):
            self.fw.step(network, {**batch, **extra}, "train", epoch)
            self.line.train(batch, rate)
        self.check_weights()

    def check_weights(self) -> None:
        assert_same(self.fw.weights(self.model), self.line.weights)


UPDATE = "Raised by UpdateOp (op 2, inputs ['loss'])."
BATCH = make_batches(1)[0]


class TestUpdates:
    @pytest.mark.parametrize("merge", [1, 2])
    def test_without_an_optimizer(self, fw: Framework, merge: int) -> None:
        case = Case(fw, EpochScheduler({2: fw.sgd(0.1)}))
        network = fw.network(case.supervised(merge_grad=merge))
        parts = "Model 'm'", "no optimizer in this epoch", "optimizer_fn"
        with refusing(ValueError, *parts, *notes_of(fw, UPDATE)):
            fw.step(network, BATCH, "train")
        check_free(network)
        fw.step(network, BATCH, "eval")
        fw.step(network, BATCH, "train", warmup=True)
        case.check_weights()
        if merge == 1:
            case.check_trains(network, epoch=2)

    def test_of_a_frozen_model(self, fw: Framework) -> None:
        case = Case(fw)
        network = fw.network(case.supervised())
        case.check_trains(network)
        fw.freeze(case.model, 0)
        what = {"torch": "requires_grad", "tf": "trainable"}[fw.target]
        with refusing(ValueError, "Model 'm'", what, "Unfreeze", *notes_of(fw, UPDATE)):
            fw.step(network, BATCH, "train")
        check_free(network)
        fw.freeze(case.model, 0, False)
        case.check_trains(network)

    @pytest.mark.parametrize(
        ("spoil", "got", "merge"),
        [
            (lambda g: g[:1], "1 of them", 1),
            (lambda g: [*g, g[0]], "3 of them", 2),
            (lambda g: g[0], "Tensor", 1),
            (lambda g: None, "NoneType", 1),
        ],
        ids=["too few", "too many", "a tensor", "nothing"],
    )
    def test_by_gradients_that_are_not_the_models(
        self, fw: Framework, spoil: Any, got: str, merge: int
    ) -> None:
        case = Case(fw)
        network = fw.network(
            case.supervised(
                TakeGradients(fw, case.model, "loss", "g"),
                LambdaOp(lambda g, ok: g if ok == "yes" else spoil(g), ["g", "ok"], "g", "train"),
                gradients="g",
                merge_grad=merge,
            )
        )
        parts = (
            "UpdateOp of 'm' expects gradients in 'g'",
            "2 trainable weights",
            f"{got}.",
        )
        note = "Raised by UpdateOp (op 4, inputs ['g'])."
        with refusing(ValueError, *parts, *notes_of(fw, note)):
            fw.step(network, {**BATCH, "ok": "no"}, "train", desired_output_keys={"loss"})
        check_free(network)
        case.check_weights()
        if merge == 1:
            case.check_trains(network, ok="yes")

    @pytest.mark.parametrize(("loss", "name"), [(3.0, "float"), ([X], "list"), (None, "NoneType")])
    def test_by_a_loss_that_is_no_tensor(self, fw: Framework, loss: Any, name: str) -> None:
        case = Case(fw)
        network = fw.network(
            case.supervised(
                LambdaOp(lambda loss, bad: loss if bad == "ok" else bad, ["loss", "bad"], "loss")
            )
        )
        note = "Raised by UpdateOp (op 3, inputs ['loss'])."
        text = f"UpdateOp of 'm' expects a tensor as its loss 'loss', but got {name}."
        with refusing(ValueError, text, *notes_of(fw, note)):
            fw.step(network, {**BATCH, "bad": loss}, "train")
        check_free(network)
        case.check_weights()
        case.check_trains(network, bad="ok")

    @pytest.mark.parametrize("merge", [1, 2])
    def test_by_a_loss_without_gradients(self, fw: Framework, merge: int) -> None:
        case = Case(fw)
        network = fw.network(
            [
                ModelOp(case.model, "x", "y", trainable=False, gradients=False),
                MeanSquaredError(("y", "t"), "loss"),
                UpdateOp(case.model, "loss", merge_grad=merge),
            ]
        )
        # The types of torch.autograd and of Keras's optimizers.
        kind = {"torch": RuntimeError, "tf": ValueError}[fw.target]
        parts = "The loss 'loss' has no", "'m'", "gradients=True"
        with refusing(kind, *parts, *notes_of(fw, UPDATE)):
            fw.step(network, BATCH, "train")
        check_free(network)
        case.check_weights()
        case.check_trains(fw.network(case.supervised()))


class TestTransform:
    @pytest.mark.parametrize(
        ("data", "name"),
        [(3, "int"), ("text", "str"), (None, "NoneType"), ([1, 2], "int"), (["a"], "str")],
    )
    def test_of_no_data(self, fw: Framework, data: Any, name: str) -> None:
        network = fw.network([LambdaOp(lambda x: x + 1, "x", "y")])
        for _ in range(2):
            with refusing(TypeError, f" {name}."):
                network.transform(data, "infer")
            check_free(network)
        assert_same(fw.arrays(network.transform({"x": X}, "infer")), {"x": X, "y": X + 1})

    def test_whose_data_raises(self, fw: Framework) -> None:
        def generate() -> Any:
            yield {"x": X}
            raise Trouble("as told")

        network = fw.network([LambdaOp(lambda x: x + 1, "x", "y")])
        for _ in range(2):
            with refusing(Trouble, "as told"):
                network.transform(generate(), "infer")
            check_free(network)
        assert_same(fw.arrays(network.transform([{"x": X}], "infer")), [{"x": X, "y": X + 1}])
