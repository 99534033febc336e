"""Errors for bad settings: their class, and that they name the op, the setting and the value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op import numpyop, tensorop
from fastnet.op.numpyop import meta as numpy_meta
from fastnet.op.numpyop import univariate
from fastnet.op.tensorop import augmentation, gradient, loss, meta
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.types import Model
from tests import refusals

# Typed loosely, because the arguments are wrong on purpose.
partial: Any = functools.partial

PAIR = ("p", "t")
LOSSES = [
    loss.CrossEntropy,
    loss.DiceLoss,
    loss.FocalLoss,
    loss.Hinge,
    loss.L1_Loss,
    loss.MeanSquaredError,
]


@pytest.fixture(scope="module")
def model() -> Model:
    return fastnet.build(lambda: torch.nn.Linear(3, 2), "sgd", model_name="m")


def in_a_network(op: Any) -> TorchNetwork:
    """Make a network of an op, which checks the number of its keys."""
    return TorchNetwork([], op) if isinstance(op, numpyop.NumpyOp) else TorchNetwork([op])


def refuse(make: Callable[[], Any], kind: type[Exception], *parts: object) -> None:
    """Check that making an op, or a network of it, raises an error with these parts."""
    text = refusals.refusal(kind, lambda: in_a_network(make()))
    for part in parts:
        assert str(part) in text


def inner(mode: Any = None, ds_id: Any = None, inputs: Any = "x", outputs: Any = "x") -> Any:
    return tensorop.LambdaOp(lambda *values: values, inputs, outputs, mode, ds_id)


def array_op(**rest: Any) -> numpyop.NumpyOp:
    return numpyop.NumpyOp("x", "x", **rest)


SUM = loss.Hinge(PAIR, "y")
LINEAR = torch.nn.Linear(1, 1)

# The class, its arguments, the error, and the setting that it names with its value.
SETTINGS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    *[(tensorop.Argmax, {"axis": axis}, ValueError, "axis") for axis in ("a", 1.5)],
    *[
        (tensorop.Reshape, {"shape": shape}, ValueError, "shape")
        for shape in [(-1, -1), (1.5, 2), (-2, 2), None, "ab", 1.5]
    ],
    *[
        (tensorop.Permute, {"permutation": order}, ValueError, "permutation")
        for order in [(0, 0, 1), (), (0.0, 1.0), "ab", 1, (0, 5, 1), (0, -4, 1), (0, -2)]
    ],
    *[
        (tensorop.Resize3D, {"output_shape": shape}, ValueError, "output_shape")
        for shape in [(1, 1), (0, 1, 1), (1.5, 1, 1), 3, (-1, 2, 2), None]
    ],
    (
        tensorop.Resize3D,
        {"output_shape": (1, 1, 1), "resize_mode": "cubic"},
        AssertionError,
        "resize_mode",
    ),
    *[
        (tensorop.Normalize, {name: given}, ValueError, name)
        for name in ("mean", "std")
        for given in (None, "abc", ("a", 0.5), ())
    ],
    (tensorop.Normalize, {"max_pixel_value": 0}, ValueError, "max_pixel_value"),
    (tensorop.UnHadamard, {"n_classes": 0}, ValueError, "n_classes"),
    *[
        (cls, {"n_classes": 3, "code_length": length}, ValueError, "code_length")
        for cls in (tensorop.UnHadamard, univariate.Hadamard)
        for length in (6, 2)
    ],
    (univariate.Hadamard, {"n_classes": 2.0}, ValueError, "n_classes"),
    (univariate.Onehot, {"num_classes": "3"}, ValueError, "num_classes"),
    (univariate.Onehot, {"num_classes": 3, "label_smoothing": 1.5}, ValueError, "label_smoothing"),
    (univariate.ExpandDims, {"axis": None}, ValueError, "axis"),
    (univariate.Binarize, {"threshold": None}, ValueError, "threshold"),
    (univariate.ToArray, {"dtype": "floot"}, ValueError, "dtype"),
    (univariate.Minmax, {"epsilon": "x"}, ValueError, "epsilon"),
    (univariate.Minmax, {"new_max": None}, ValueError, "new_max"),
    *[
        (univariate.Minmax, {"new_max": most}, AssertionError, "new_max")
        for most in (0.0, -1.0, float("nan"))
    ],
    *[
        (univariate.Reshape, {"shape": shape}, ValueError, "shape")
        for shape in [(-1, -1), (1.5, 2), (-2, 2), None]
    ],
    *[
        (univariate.ChannelTranspose, {"axes": axes}, ValueError, "axes")
        for axes in [(0, 0, 1), (), "ab", 1, (0, 5, 1)]
    ],
]

LOSS_SETTINGS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    *[(loss.CrossEntropy, {"form": form}, ValueError, "form") for form in ("sparce", "Binary", 3)],
    *[
        (loss.CrossEntropy, {name: given}, ValueError, name)
        for name, given in [
            ("axis", 1.5),
            ("ignore_index", "a"),
            ("label_smoothing", 1.5),
            ("label_smoothing", None),
        ]
    ],
    *[
        (loss.CrossEntropy, {"form": form, name: 1}, ValueError, name)
        for form, name in [
            ("binary", "axis"),
            ("binary", "ignore_index"),
            ("categorical", "ignore_index"),
        ]
    ],
    *[
        (cls, {name: weights}, AssertionError, name)
        for cls, name in ((loss.CrossEntropy, "class_weights"), (loss.DiceLoss, "channel_weights"))
        for weights in ([1.0], {"1": 2.0}, {1: 2})
    ],
    *[
        (loss.DiceLoss, {"channel_weights": {index: 1.0}}, AssertionError, "channel_weights")
        for index in (-1, -3)
    ],
    (loss.DiceLoss, {"epsilon": "x"}, ValueError, "epsilon"),
    *[
        (loss.FocalLoss, {name: given}, ValueError, name)
        for name, given in [
            ("gamma", -1),
            ("gamma", None),
            ("gamma", "a"),
            ("alpha", -1),
            ("alpha", 1.5),
            ("sample_reduction", "max"),
            ("shape_reduction", None),
        ]
    ],
    (loss.L1_Loss, {"loss_type": "L2"}, ValueError, "loss_type"),
    *[(loss.L1_Loss, {"beta": beta}, ValueError, "beta") for beta in ("1", 0, -1.5)],
]


def shown(settings: dict[str, Any], name: str) -> str:
    """Return how an error shows a value: a bad entry of a dict by itself."""
    value = settings[name]
    return repr(next(iter(value))) if isinstance(value, dict) else repr(value)


@pytest.mark.parametrize(("cls", "settings", "kind", "name"), SETTINGS)
def test_settings(cls: Any, settings: dict[str, Any], kind: Any, name: str) -> None:
    make = partial(cls, inputs="x", outputs="y", **settings)
    refuse(make, kind, cls.__name__, name, shown(settings, name))


@pytest.mark.parametrize(("cls", "settings", "kind", "name"), LOSS_SETTINGS)
def test_settings_of_losses(cls: Any, settings: dict[str, Any], kind: Any, name: str) -> None:
    value = settings[name]
    parts = [] if isinstance(value, (dict, list)) else [repr(value)]
    refuse(partial(cls, PAIR, "y", **settings), kind, cls.__name__, name, *parts)


@pytest.mark.parametrize(
    ("make", "kind", "parts"),
    [
        (partial(loss.SuperLoss, SUM, regularization=0), ValueError, "regularization, not 0"),
        (partial(loss.SuperLoss, SUM, regularization="a"), ValueError, "regularization, 'a'"),
        (partial(loss.SuperLoss, SUM, threshold="mean"), ValueError, "threshold, 'mean'"),
        (partial(loss.SuperLoss, SUM, threshold=None), ValueError, "threshold, None"),
        (partial(loss.SuperLoss, inner()), ValueError, "SuperLoss, LambdaOp"),
        (partial(loss.L2Regularization, "a", "y", LINEAR, beta="x"), ValueError, "beta, 'x'"),
        (partial(gradient.FGSM, "x", "l", "y", epsilon="a"), ValueError, "FGSM, epsilon, 'a'"),
        (partial(gradient.FGSM, "x", "l", "y", clip_low="a"), ValueError, "clip_low, 'a'"),
        (
            partial(gradient.FGSM, "x", "l", "y", clip_low=0.5, clip_high=-0.5),
            ValueError,
            "clip_low, clip_high, 0.5, -0.5",
        ),
        (partial(gradient.FGSM, ["a", "b"], "l", "y"), ValueError, "FGSM, data, ['a', 'b']"),
        (partial(gradient.FGSM, "x", None, "y"), ValueError, "FGSM, loss, None"),
        (partial(gradient.FGSM, "x", "l", ["a", "b"]), ValueError, "FGSM, ['a', 'b']"),
        (partial(gradient.GradientOp, "y", "g"), AssertionError, "GradientOp, inputs, model"),
        (partial(gradient.GradientOp, "y", "g", "x", LINEAR), AssertionError, "inputs, model"),
        (partial(gradient.GradientOp, "l", "g", model=3), AssertionError, "GradientOp, int"),
        (partial(gradient.GradientOp, [], [], model=LINEAR), AssertionError, "GradientOp, []"),
        (
            partial(gradient.GradientOp, ["y", "z"], ["a"], ["x", "x"]),
            AssertionError,
            "GradientOp, ['y', 'z'], ['a'], ['x', 'x']",
        ),
        (partial(gradient.GradientOp, ["y"], ["a"], ["x", "w"]), AssertionError, "['x', 'w']"),
        (partial(gradient.Watch, None), ValueError, "Watch, []"),
        (partial(numpyop.Batch, -1), ValueError, "Batch, batch_size, -1"),
        (partial(numpyop.Batch, 2.0), ValueError, "Batch, batch_size, 2.0"),
        (partial(numpyop.Batch, pad_value=0, collate_fn=len), ValueError, "pad_value, collate_fn"),
        (partial(tensorop.Normalize, "x", "y", (1, 1), (1, 1, 1)), ValueError, "mean, std, 2, 3"),
        (partial(tensorop.Normalize, "x", "y", np.ones(3), np.ones(2)), ValueError, "mean, std"),
    ],
)
def test_more_settings(make: Any, kind: type[Exception], parts: str) -> None:
    refuse(make, kind, *parts.replace("not ", "").split(", "))


@pytest.mark.parametrize("cls", [augmentation.CutMixBatch, augmentation.MixUpBatch])
def test_mixing(cls: Any) -> None:
    for alpha in ("a", 0, -0.5):
        refuse(partial(cls, PAIR, PAIR, alpha=alpha), AssertionError, cls.__name__, repr(alpha))
    refuse(partial(cls, ["x"], ["x", "l"]), AssertionError, cls.__name__, ["x"])
    refuse(partial(cls, ["x", "l"], ["x"]), AssertionError, cls.__name__, ["x", "l"])


class TestKeys:
    @pytest.mark.parametrize("cls", LOSSES)
    @pytest.mark.parametrize(
        ("inputs", "outputs"),
        [(PAIR, None), (PAIR, ["y", "z"]), (None, "y"), ("p", "y"), (["p", "t", "w"], "y")],
    )
    def test_a_loss_reads_two_and_writes_one(self, cls: Any, inputs: Any, outputs: Any) -> None:
        op = cls(inputs, outputs)
        refuse(lambda: op, ValueError, cls.__name__, op.inputs, op.outputs)

    @pytest.mark.parametrize("cls", LOSSES)
    def test_a_loss_outside_of_a_network_has_any(self, cls: Any) -> None:
        pair = [torch.full((2, 1, 1, 1), 0.25), torch.ones(2, 1, 1, 1)]
        expected = cls(PAIR, "y").forward(pair, {})
        for keys in ("x", None, ["a", "b", "c"]):
            op = cls(inputs=keys, outputs=keys)
            assert torch.equal(op.forward(pair, {}), expected)
            op.build("torch", torch.device("cpu"))
            assert torch.equal(op.forward(pair, {}), expected)

    def test_other_ops_outside_of_a_network_have_any(self) -> None:
        x = torch.arange(6.0)
        reshape = tensorop.LambdaOp(fn=torch.reshape)
        reshape.build("torch", torch.device("cpu"))
        assert reshape.forward([x, (2, 3)], {}).shape == (2, 3)
        assert numpyop.LambdaOp(fn=np.reshape).forward([x.numpy(), (2, 3)], {}).shape == (2, 3)
        assert tensorop.Average(None, None).forward([x, x + 2], {}).tolist() == (x + 1).tolist()
        assert tensorop.Argmax([], []).forward([x], {})[0] == 5
        assert univariate.Minmax(["a"], ["y", "z"]).forward([x.numpy()], {})[0].max() == 1

    @pytest.mark.parametrize(
        "cls",
        [
            tensorop.Argmax,
            tensorop.Normalize,
            tensorop.Permute,
            partial(tensorop.Reshape, shape=(-1,)),
            partial(tensorop.Resize3D, output_shape=(1, 1, 1)),
            partial(tensorop.UnHadamard, n_classes=2),
            univariate.Minmax,
            univariate.ToArray,
        ],
    )
    @pytest.mark.parametrize(
        ("inputs", "outputs"), [(["a", "b"], ["y"]), (["a"], ["y", "z"]), ([], [])]
    )
    def test_one_output_for_each_input(self, cls: Any, inputs: Any, outputs: Any) -> None:
        name = getattr(cls, "func", cls).__name__
        refuse(lambda: cls(inputs=inputs, outputs=outputs), ValueError, name, inputs, outputs)

    @pytest.mark.parametrize(
        "op",
        [
            tensorop.Average([], "y"),
            tensorop.Average(["a"], ["y", "z"]),
            tensorop.Gather(["a", "b"], ["y"]),
            tensorop.Gather(["a", "b", "c"], ["y", "z", "w"], ["i", "j"]),
            loss.L2Regularizaton(["a", "b"], "y", LINEAR),  # type: ignore[arg-type]
            tensorop.Delete([]),
            numpyop.Delete([]),
        ],
        ids=repr,
    )
    def test_other_counts(self, op: Any) -> None:
        refuse(lambda: op, ValueError, type(op).__name__)

    @pytest.mark.parametrize("kind", ["meta", "super", "scheduled"])
    def test_of_ops_inside_of_others(self, kind: str) -> None:
        op: Any = loss.Hinge("p", "y")  # type: ignore[arg-type]
        if kind == "meta":
            op = meta.Sometimes(op)
        elif kind == "super":
            op = loss.SuperLoss(op)
        else:
            op = fastnet.schedule.EpochScheduler({1: None, 3: op})
        refuse(lambda: op, ValueError, "Hinge", ["p"])

    @pytest.mark.parametrize(("setting", "key"), [("loss_name", None), ("loss_name", ["a", "b"])])
    def test_an_update_reads_one_loss(self, model: Model, setting: str, key: Any) -> None:
        refuse(lambda: UpdateOp(model, key), ValueError, "UpdateOp", "'m'", setting, repr(key))

    def test_an_update_reads_one_key_of_gradients(self, model: Model) -> None:
        make = partial(UpdateOp, model, "l", gradients=["g"])
        refuse(make, ValueError, "UpdateOp", "'m'", "gradients", ["g"])

    @pytest.mark.parametrize("cls", [tensorop.Argmax, loss.Hinge, univariate.Minmax])
    def test_malformed_ones(self, cls: Any) -> None:
        name = cls.__name__
        refuse(lambda: cls(["a", 3], "y"), TypeError, name, 3)
        refuse(lambda: cls("a", ""), AssertionError, name, "empty")
        refuse(lambda: cls("a", "y", mode="trian"), AssertionError, name, "'trian'")
        refuse(lambda: cls("a", "y", ds_id=["b:c"]), AssertionError, name, "'b:c'")


class TestModels:
    @pytest.mark.parametrize("cls", [ModelOp, UpdateOp])
    @pytest.mark.parametrize("given", [None, 3, torch.nn.Linear, LINEAR])
    def test_one_that_was_not_built(self, cls: Any, given: Any) -> None:
        make = partial(cls, given, "x")
        refuse(make, AssertionError, cls.__name__, type(given).__name__, "fastnet.build")

    @pytest.mark.parametrize("cls", [loss.L2Regularization, loss.L2Regularizaton])
    @pytest.mark.parametrize("given", [None, 3, torch.nn.Linear])
    def test_none_at_all(self, cls: Any, given: Any) -> None:
        refuse(lambda: cls("a", "y", model=given), ValueError, cls.__name__, type(given).__name__)

    @pytest.mark.parametrize(
        "make",
        [
            lambda model: ModelOp(model, "x"),
            lambda model: UpdateOp(model, "x"),
            lambda model: loss.L2Regularization("a", "y", model=model),
            lambda model: gradient.GradientOp("l", "g", model=model),
        ],
    )
    def test_one_of_another_framework(self, model: Model, make: Any) -> None:
        op = make(model)
        refuse(lambda: op.build("tf"), ValueError, type(op).__name__, "'m'", "'torch'", "'tf'")
        op.build("torch", torch.device("cpu"))


class Scaler:
    """A callable object."""

    def __call__(self, x: Any, factor: Any) -> Any:
        return x * factor


class TestFunctions:
    @pytest.mark.parametrize(
        ("cls", "name"),
        [
            (tensorop.LambdaOp, "fn"),
            (numpyop.LambdaOp, "fn"),
            (numpyop.RemoveIf, "fn"),
            (partial(numpyop.Batch, 2, False, None), "collate_fn"),
        ],
    )
    @pytest.mark.parametrize("given", [3, "x"])
    def test_not_callable(self, cls: Any, name: str, given: Any) -> None:
        op = getattr(cls, "func", cls).__name__
        refuse(lambda: cls(given), TypeError, op, name, repr(given), type(given).__name__)

    @pytest.mark.parametrize("cls", [tensorop.LambdaOp, numpyop.LambdaOp, numpyop.RemoveIf])
    @pytest.mark.parametrize(
        ("fn", "keys", "takes"),
        [
            (lambda x: x, ["a", "b"], "(x)"),
            (lambda x, y: x, "a", "(x, y)"),
            (lambda x: x, None, "(x)"),
            (lambda: 1, "a", "()"),
            (Scaler(), ["a"], "(x: 'Any', factor: 'Any')"),
        ],
    )
    def test_another_number_of_arguments(self, cls: Any, fn: Any, keys: Any, takes: str) -> None:
        given = [keys] if isinstance(keys, str) else keys or []
        refuse(lambda: cls(fn, inputs=keys), ValueError, cls.__name__, given, takes)

    @pytest.mark.parametrize("cls", [tensorop.LambdaOp, numpyop.LambdaOp, numpyop.RemoveIf])
    @pytest.mark.parametrize(
        ("fn", "keys"),
        [
            (lambda *values: values, ["a", "b", "c"]),
            (lambda x, y=1: x, "a"),
            (lambda: 1, None),
            (functools.partial(Scaler(), factor=2), "a"),
            (torch.nn.Linear(1, 1), "a"),
            # These have no signature.
            (np.add, ["a", "b"]),
            (max, ["a", "b"]),
        ],
    )
    def test_that_fit(self, cls: Any, fn: Any, keys: Any) -> None:
        op = cls(fn, inputs=keys)
        assert op.in_list
        if cls is not numpyop.RemoveIf:
            in_a_network(op)


@pytest.mark.parametrize(
    ("ops", "op"), [(meta, inner), (numpy_meta, array_op)], ids=["tensors", "arrays"]
)
class TestMetaOps:
    def test_no_op(self, ops: Any, op: Any) -> None:
        refuse(lambda: ops.Fuse([]), ValueError, "Fuse")
        refuse(ops.OneOf, ValueError, "OneOf")

    @pytest.mark.parametrize("name", ["Fuse", "OneOf", "Repeat", "Sometimes"])
    def test_something_else(self, ops: Any, op: Any, name: str) -> None:
        other = array_op() if op is inner else inner()
        for given, got in ((type(op()), type(op()).__name__), (other, type(other).__name__)):
            refuse(lambda given=given: getattr(ops, name)(given), TypeError, name, "op 0", got)

    def test_ops_that_differ(self, ops: Any, op: Any) -> None:
        # As in FastEstimator, the classes of the errors differ.
        for make, kind in ((lambda *some: ops.Fuse(some), ValueError), (ops.OneOf, AssertionError)):
            refuse(partial(make, op(mode="train"), op(mode="eval")), kind, "mode", ["eval"])
            refuse(partial(make, op(ds_id="a"), op()), kind, "ds_id", "op 1", [])

    @pytest.mark.parametrize("probs", [0.5, ["a", "b"], [1.0], [0.5, 0.6], [1.5, -0.5]])
    def test_probs(self, ops: Any, op: Any, probs: Any) -> None:
        refuse(partial(ops.OneOf, op(), op(), probs=probs), AssertionError, "OneOf", probs)
        refuse(partial(ops.OneOf, op(), op(), probs=[float("nan"), 1]), AssertionError, "nan")

    @pytest.mark.parametrize("probs", [None, [], (), np.array([0.5, 0.5])])
    def test_probs_that_are_fine(self, ops: Any, op: Any, probs: Any) -> None:
        # numpy draws in another way where no probabilities are given.
        given = probs is not None and len(probs) > 0
        expected = [0.5, 0.5] if given or op is inner else None
        assert ops.OneOf(op(), op(), probs=probs).probs == expected

    @pytest.mark.parametrize("prob", [-0.1, 1.1, float("nan"), "a", None])
    def test_prob(self, ops: Any, op: Any, prob: Any) -> None:
        refuse(partial(ops.Sometimes, op(), prob), ValueError, "Sometimes", repr(prob))

    @pytest.mark.parametrize(
        ("settings", "kind"),
        [
            ({"repeat": 0}, ValueError),
            ({"repeat": -2}, ValueError),
            ({"repeat": 2.5}, TypeError),
            ({"repeat": "x"}, TypeError),
            # It has no signature.
            ({"repeat": max}, TypeError),
            ({"repeat": len, "max_iter": 0}, ValueError),
            ({"repeat": len, "max_iter": "a"}, ValueError),
            ({"repeat": len, "max_iter": 1.5}, ValueError),
            ({"repeat": 3, "max_iter": 5}, ValueError),
        ],
    )
    def test_repeat(self, ops: Any, op: Any, settings: Any, kind: Any) -> None:
        name = list(settings)[-1]
        refuse(partial(ops.Repeat, op(), **settings), kind, "Repeat", name, settings[name])


def test_other_keys_in_one_of() -> None:
    for other, name in (
        (inner(inputs="y"), "inputs"),
        (inner(outputs="y"), "outputs"),
        (inner(outputs=["x"]), "out_list"),
    ):
        refuse(partial(meta.OneOf, inner(), other), AssertionError, "OneOf", name)


@pytest.mark.parametrize("name", ["Fuse", "OneOf", "Repeat", "Sometimes"])
def test_a_batch_inside(name: str) -> None:
    refuse(lambda: getattr(numpy_meta, name)(numpyop.Batch()), ValueError, name, "Batch")


def test_rua() -> None:
    with pytest.raises(AttributeError, match=r"LambdaOp.*Fuse.*set_rua_level"):
        numpy_meta.Fuse(numpyop.LambdaOp(abs, "x", "x")).set_rua_level(0.5)


@pytest.mark.parametrize("merge", [0, 1.5, "2"])
def test_merged_steps(model: Model, merge: Any) -> None:
    make = partial(UpdateOp, model, "l", merge_grad=merge)
    refuse(make, ValueError, "UpdateOp", "'m'", f"merge_grad={merge!r}")
