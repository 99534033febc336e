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
from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.types import Model
from tests import refusals

# Typed loosely, because the arguments are wrong on purpose.
partial: Any = functools.partial

PAIR = ("p", "t")
EXPORTED: list[Any] = [getattr(loss, name) for name in loss.__all__]
LOSSES = [one for one in EXPORTED if issubclass(one, PairLoss)]


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

# A class, a setting, and values that are refused with a ValueError that names all three.
SHAPES: list[Any] = [(-1, -1), (1.5, 2), (-2, 2), None]
SETTINGS: list[tuple[Any, str, list[Any]]] = [
    (tensorop.Argmax, "axis", ["a", 1.5]),
    (tensorop.Reshape, "shape", [*SHAPES, "ab", 1.5]),
    (tensorop.Permute, "permutation", [(0, 0, 1), (), (0.0, 1.0), "ab", 1, (2, 1), (0, -2)]),
    (tensorop.Resize3D, "output_shape", [(1, 1), (0, 1, 1), (1.5, 1, 1), 3, (-1, 2, 2), None]),
    (tensorop.Normalize, "mean", [None, "abc", ("a", 0.5), ()]),
    (tensorop.Normalize, "std", [None, "abc", ("a", 0.5), ()]),
    (tensorop.Normalize, "max_pixel_value", [0]),
    (tensorop.UnHadamard, "n_classes", [0]),
    (partial(tensorop.UnHadamard, n_classes=3), "code_length", [0, 6, 2]),
    (partial(univariate.Hadamard, n_classes=3), "code_length", [0, 6, 2]),
    (univariate.Hadamard, "n_classes", [2.0]),
    (univariate.Onehot, "num_classes", ["3"]),
    (partial(univariate.Onehot, num_classes=3), "label_smoothing", [1.5]),
    (univariate.ExpandDims, "axis", [None]),
    (univariate.Binarize, "threshold", [None]),
    (univariate.ToArray, "dtype", ["floot"]),
    (univariate.Minmax, "epsilon", ["x"]),
    (univariate.Minmax, "new_max", [None]),
    (univariate.Reshape, "shape", SHAPES),
    (univariate.ChannelTranspose, "axes", [(0, 0, 1), (), "ab", 1, (0, -4, 1)]),
    (loss.CrossEntropy, "form", ["sparce", "Binary", 3]),
    (loss.CrossEntropy, "axis", [1.5]),
    (loss.CrossEntropy, "ignore_index", ["a"]),
    (loss.CrossEntropy, "label_smoothing", [1.5, None]),
    (partial(loss.CrossEntropy, form="binary"), "axis", [1]),
    (partial(loss.CrossEntropy, form="binary"), "ignore_index", [1]),
    (partial(loss.CrossEntropy, form="categorical"), "ignore_index", [1]),
    (loss.DiceLoss, "epsilon", ["x"]),
    (loss.FocalLoss, "gamma", [-1, None, "a"]),
    (loss.FocalLoss, "alpha", [-1, 1.5]),
    (loss.FocalLoss, "sample_reduction", ["max"]),
    (loss.FocalLoss, "shape_reduction", [None]),
    (loss.L1_Loss, "loss_type", ["L2"]),
    (loss.L1_Loss, "beta", ["1", 0, -1.5]),
]
# Those that FastEstimator refuses with AssertionError.
ASSERTED: list[tuple[Any, str, list[Any]]] = [
    (partial(tensorop.Resize3D, output_shape=(1, 1, 1)), "resize_mode", ["cubic"]),
    (univariate.Minmax, "new_max", [0.0, -1.0, float("nan")]),
    (loss.CrossEntropy, "class_weights", [[1.0], {"1": 2.0}, {1: "2"}]),
    (loss.DiceLoss, "channel_weights", [[1.0], {"1": 2.0}, {1: "2"}, {-1: 1.0}, {-3: 1.0}]),
]


@pytest.mark.parametrize(
    ("cls", "name", "value", "kind"),
    [
        *[(cls, name, one, ValueError) for cls, name, values in SETTINGS for one in values],
        *[(cls, name, one, AssertionError) for cls, name, values in ASSERTED for one in values],
    ],
)
def test_settings(cls: Any, name: str, value: Any, kind: type[Exception]) -> None:
    plain = getattr(cls, "func", cls)
    inputs = PAIR if plain in LOSSES else "x"
    # of weights it names the bad one
    parts = [] if isinstance(value, (dict, list)) else [repr(value)]
    make = partial(cls, inputs=inputs, outputs="y", **{name: value})
    refuse(make, kind, plain.__name__, name, *parts)


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
        (
            partial(gradient.GradientOp, "y", "g", "x", higher_order=2),
            ValueError,
            "GradientOp, higher_order, 2",
        ),
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
        [(PAIR, None), (PAIR, ["y", "z"]), ("p", "y"), (["p", "t", "w"], "y")],
    )
    def test_a_loss_reads_two_and_writes_one(self, cls: Any, inputs: Any, outputs: Any) -> None:
        op = cls(inputs, outputs)
        refuse(lambda: op, ValueError, cls.__name__, op.inputs, op.outputs)

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

    @pytest.mark.parametrize("cls", [tensorop.LambdaOp, numpyop.LambdaOp])
    @pytest.mark.parametrize("loss", ["CrossEntropyLoss", "MSELoss"])
    def test_the_class_of_a_loss(self, cls: Any, loss: str) -> None:
        made = getattr(torch.nn, loss)
        for fn in (made, partial(made, reduction="sum")):
            self._refuse_class(cls, fn, loss)
        assert cls(made(), ["y", "t"], "loss").inputs == ["y", "t"]

    @pytest.mark.tf
    @pytest.mark.parametrize("loss", ["BinaryCrossentropy", "MeanSquaredError"])
    def test_the_class_of_a_loss_of_keras(self, loss: str) -> None:
        losses = pytest.importorskip("tensorflow").keras.losses
        self._refuse_class(tensorop.LambdaOp, getattr(losses, loss), loss)

    @staticmethod
    def _refuse_class(cls: Any, fn: Any, loss: str) -> None:
        with pytest.raises(TypeError) as caught:
            cls(fn, ["y", "t"], "loss")
        for part in ("LambdaOp(y, t -> loss)", f"class {loss} as its fn", f"instance: {loss}(...)"):
            assert part in str(caught.value)

    def test_other_classes_are_functions(self) -> None:
        op = tensorop.LambdaOp(complex, ["y", "t"], "loss")
        assert op.forward([1, 2], {}) == 1 + 2j

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
        if op is array_op:
            refuse(lambda: getattr(ops, name)(numpyop.Batch()), ValueError, name, "Batch")

    def test_ops_that_differ(self, ops: Any, op: Any) -> None:
        # As in FastEstimator, the classes of the errors differ.
        for make, kind in ((lambda *some: ops.Fuse(some), ValueError), (ops.OneOf, AssertionError)):
            refuse(partial(make, op(mode="train"), op(mode="eval")), kind, "mode", ["eval"])
            refuse(partial(make, op(ds_id="a"), op()), kind, "ds_id", "op 1 all")

    @pytest.mark.parametrize(
        ("name", "settings", "kind"),
        [
            *[
                ("OneOf", {"probs": one}, AssertionError)
                for one in (0.5, ["a", 1], [1.0], [0.5, 0])
            ],
            *[("Sometimes", {"prob": one}, ValueError) for one in (-0.1, float("nan"), "a", None)],
            *[("Repeat", {"repeat": one}, ValueError) for one in (0, -2)],
            # One of them has no signature.
            *[("Repeat", {"repeat": one}, TypeError) for one in (2.5, "x", max)],
            *[("Repeat", {"repeat": len, "max_iter": one}, ValueError) for one in (0, "a", 1.5)],
            ("Repeat", {"repeat": 3, "max_iter": 5}, ValueError),
        ],
    )
    def test_settings(self, ops: Any, op: Any, name: str, settings: Any, kind: Any) -> None:
        inside = [op(), op()] if name == "OneOf" else [op()]
        setting, value = list(settings.items())[-1]
        shown = value if name == "OneOf" else repr(value)
        refuse(partial(getattr(ops, name), *inside, **settings), kind, name, setting, shown)


def test_other_keys_in_one_of() -> None:
    for other, name in (
        (inner(inputs="y"), "inputs"),
        (inner(outputs="y"), "outputs"),
        (inner(outputs=["x"]), "out_list"),
    ):
        refuse(partial(meta.OneOf, inner(), other), AssertionError, "OneOf", name)


def test_rua() -> None:
    with pytest.raises(AttributeError, match=r"LambdaOp.*Fuse.*set_rua_level"):
        numpy_meta.Fuse(numpyop.LambdaOp(abs, "x", "x")).set_rua_level(0.5)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        *[({"merge_grad": value}, [f"merge_grad={value!r}"]) for value in (0, 1.5, "2", True)],
        *[({"defer": value}, [f"defer={value!r}", "True or False"]) for value in ("yes", None)],
        *[({"clip_norm": value}, [f"clip_norm={value}"]) for value in (-1, 0, float("nan"))],
        *[({"clip_value": value}, [f"clip_value={value!r}"]) for value in ("a", True)],
        ({"clip_norm": 1.0, "clip_value": 2}, ["clip_norm=1.0", "clip_value=2", "Leave one"]),
        ({"loss_name": None}, ["loss_name", "None"]),
        ({"loss_name": ["a", "b"]}, ["loss_name", "['a', 'b']"]),
        ({"gradients": ["g"]}, ["gradients", "['g']"]),
        ({"model_losses": None}, ["model_losses=None", "True or False"]),
        ({"rest": "keep"}, ["rest='keep'", "'carry', 'flush', 'drop'"]),
        ({"outputs": "norm"}, ["outputs", "{'grad_norm': 'norm'}", "got 'norm'"]),
        ({"outputs": {"grad_nrm": "n"}}, ["'grad_nrm'", "'stepped'"]),
    ],
)
def test_updates(model: Model, settings: dict[str, Any], parts: list[str]) -> None:
    make = partial(UpdateOp, model, **{"loss_name": "l", **settings})
    refuse(make, ValueError, "UpdateOp", "'m'", *parts)
