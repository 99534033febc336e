"""Attributes of ops that are changed: the next context does what new ops made with them do.

The oracle is a network of new ops, made with the setting; what is written must not be lost, be the
network in use by then or only made. A setting that a new op refuses is refused on entry.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fastnet.op import numpyop
from fastnet.op.numpyop import meta as numpy_meta
from fastnet.op.numpyop import univariate
from fastnet.op.tensorop import (
    Argmax,
    Average,
    Delete,
    Gather,
    LambdaOp,
    Normalize,
    Permute,
    Reshape,
    Resize3D,
    TensorOp,
    UnHadamard,
)
from fastnet.op.tensorop.augmentation import CutMixBatch, MixUpBatch
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import (
    CrossEntropy,
    DiceLoss,
    FocalLoss,
    L1_Loss,
    L2Regularization,
    L2Regularizaton,
    LossOp,
    MeanSquaredError,
    SuperLoss,
)
from fastnet.op.tensorop.loss.loss import PairLoss
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.agreement import assert_same
from tests.conformance.catalogue import (
    BITS,
    CLASSES,
    IMAGES,
    LAYERS,
    MASKS,
    ROWS,
    SHARES,
    TRUE_MASKS,
    VOLUMES,
    X,
    Z,
)
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.numpy_catalogue import NUMPY_ROWS

OTHER_LAYERS = make_layers(3, 4, 2, seed=5)
KEYS = ("inputs", "outputs", "mode", "ds_id", "in_list", "out_list")
BATCH = {
    "x": X,
    "z": Z,
    "t": Z,
    "bits": BITS,
    "shares": SHARES,
    "classes": CLASSES,
    "images": IMAGES,
    "masks": MASKS,
    "true_masks": TRUE_MASKS,
    "volumes": VOLUMES,
    "count": np.array([3], "float32"),
    "codes": np.array([[0.5, -0.75], [-0.25, 0.5], [1, -1]], "float32"),
}


@dataclasses.dataclass(frozen=True)
class Refused:
    """A value of a setting that new ops, and networks with changed ops, refuse."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Case:
    """An op, and what can be changed of it.

    Attributes:
        cls: Its class.
        make: Gives the op, after those that must run in front, made with some settings.
        changes: Other values of its settings, also `Refused` ones.
        follows: What follows from its settings and keys, and is not set by itself.
        trains: Whether the weights of models tell what it does.
    """

    cls: type
    make: Callable[..., list[Any]]
    changes: Mapping[str, list[Any]] = dataclasses.field(default_factory=dict)
    follows: tuple[str, ...] = ()
    trains: bool = False


def one(cls: type, inputs: Any, *, follows: tuple[str, ...] = (), **changes: list[Any]) -> Case:
    """Return the case of an op that writes "y"; the first of its values are the old."""
    old = {name: values[0] for name, values in changes.items()}
    return Case(
        cls,
        lambda fw, **settings: [cls(inputs=inputs, outputs="y", **{**old, **settings})],
        {name: values[1:] for name, values in changes.items()},
        follows,
    )


def times(factor: float, cls: Any = LambdaOp) -> Any:
    return cls(lambda x: x * np.float32(factor), "x", "x")


def updating(fw: Framework, **settings: Any) -> list[Any]:
    model = settings.pop("model", None) or fw.build(LAYERS, fw.sgd())
    settings = {"loss_name": "loss", **settings}
    return [
        ModelOp(model, "x", "p"),
        LambdaOp(lambda p: [p * p, p * p * p], "p", ["loss", "other"]),
        UpdateOp(model, **settings),
    ]


def meta_cases(lam: Any, metas: Any) -> list[Case]:
    def fuse(fw: Framework, ops: Any = None) -> list[Any]:
        return [metas.Fuse(ops or [times(2, lam), times(3, lam)])]

    def one_of(fw: Framework, ops: Any = None, probs: Any = (0.0, 1.0)) -> list[Any]:
        return [metas.OneOf(*(ops or [times(2, lam), times(3, lam)]), probs=probs)]

    def repeat(fw: Framework, op: Any = None, repeat: Any = 2, max_iter: Any = None) -> list[Any]:
        return [metas.Repeat(op or times(2, lam), repeat, max_iter)]

    def sometimes(fw: Framework, op: Any = None, prob: float = 0.0) -> list[Any]:
        return [metas.Sometimes(op or times(2, lam), prob)]

    others = [times(5, lam), times(7, lam)]
    return [
        Case(metas.Fuse, fuse, {"ops": [others]}, ("retain_graph",)),
        Case(
            metas.OneOf,
            one_of,
            {"ops": [others], "probs": [[1.0, 0.0], Refused([0.5, 0.6])]},
            ("retain_graph",),
        ),
        Case(
            metas.Repeat,
            repeat,
            {
                "op": others[:1],
                "repeat": [3, Refused(0), Refused("often")],
                "max_iter": [Refused(2), Refused(0)],
            },
            ("repeat_inputs", "ops", "retain_graph"),
        ),
        Case(
            metas.Sometimes,
            sometimes,
            {"op": others[:1], "prob": [1.0, Refused(2.0)]},
            ("extra_inputs", "ops", "retain_graph"),
        ),
    ]


MODEL = "a model"  # stands for one that a framework builds
REFUSED_WEIGHTS: list[Any] = [Refused({1: "1"}), Refused({"a": 1.0}), Refused([1.0])]

CASES = [
    Case(TensorOp, lambda fw: [TensorOp("x", "y")]),
    one(LambdaOp, "x", fn=[lambda x: x + 1, lambda x: x * 2, Refused(3), Refused(lambda x, y: x)]),
    Case(Delete, lambda fw: [LambdaOp(lambda x: x + 1, "x", "gone"), Delete("gone")]),
    one(Argmax, "x", axis=[0, 1, Refused("x")]),
    one(Average, ["x", "z"]),
    Case(
        Gather,
        lambda fw: [Gather(["x", "z"], ["y", "y2"], indices="classes")],
        follows=("num_indices",),
    ),
    one(
        Normalize,
        "images",
        mean=[(0.5, 0.25, 0.75), 0.5, (0.1, 0.2, 0.3), Refused("x"), Refused((0.5, 0.5))],
        std=[(0.5, 1.0, 2.0), 2.0, Refused((1, 2))],
        max_pixel_value=[255.0, 1.0, Refused(-1)],
    ),
    one(Permute, "x", permutation=[(1, 0), (0, 1), Refused((0, 0))]),
    one(Reshape, "x", shape=[(2, -1), (3, 4), -1, Refused((-1, -1))]),
    one(
        Resize3D,
        "volumes",
        output_shape=[(4, 4, 2), (2, 4, 4), Refused((2, 2))],
        resize_mode=["nearest", "area", Refused("far")],
    ),
    one(UnHadamard, "codes", n_classes=[2, 1, Refused(3)], code_length=[2, Refused(3)]),
    Case(
        ModelOp,
        lambda fw, model=None, **settings: [
            ModelOp(
                model or fw.build(LAYERS, None),
                "x",
                ["y", "h"],
                **{"intermediate_layers": 1, "trainable": False, **settings},
            )
        ],
        {
            "model": [MODEL],
            "trainable": [True],
            "gradients": [False],
            "intermediate_layers": [[2], *map(Refused, ([99], ["absent"], [1.5], [1, 2]))],
            "eval_layers": [["0"], Refused(["absent"])],
        },
        ("argument_names", "result_names"),
    ),
    Case(
        UpdateOp,
        updating,
        {
            "loss_name": ["other", Refused(3)],
            "merge_grad": [3, Refused(0)],
            "defer": [True],
            "gradients": [Refused(3)],
            "clip_norm": [0.001, Refused(0)],
            "clip_value": [0.001, Refused("x")],
            "rest": ["flush", Refused("kept")],
            "weight": ["count", Refused(3)],
            "skip_nonfinite": [True, Refused("yes")],
            "model_losses": [False, Refused(0)],
        },
        ("model", "retain_graph"),
        trains=True,
    ),
    Case(Watch, lambda fw: [Watch("x")], follows=("retain_graph",)),
    Case(
        GradientOp,
        lambda fw, **settings: [
            ModelOp(model := fw.build(LAYERS, None), "x", "p"),
            LambdaOp(lambda p: p * p, "p", "f"),
            GradientOp("f", "y", model=model, **settings),
        ],
        {"higher_order": [True]},
        follows=("retain_graph", "model"),
    ),
    Case(
        FGSM,
        lambda fw, **settings: [
            Watch("x"),
            LambdaOp(lambda x: x * x, "x", "loss"),
            FGSM("x", "loss", "y", **{"epsilon": 0.5, **settings}),
        ],
        {
            "epsilon": [0.25, Refused("x")],
            "clip_low": [-0.5, Refused("x")],
            "clip_high": [0.5, Refused("x")],
        },
        ("retain_graph",),
    ),
    Case(LossOp, lambda fw: [LossOp("x", "y")], follows=("average_loss",)),
    one(
        CrossEntropy,
        ("x", "classes"),
        from_logits=[True, False],
        average_loss=[True, False],
        form=["sparse", None, Refused("dense")],
        class_weights=[{1: 2.0}, {0: 3.0, 2: 0.5}, None, *REFUSED_WEIGHTS],
        axis=[-1, None, Refused("last")],
        ignore_index=[1, None, Refused(0.5)],
        label_smoothing=[0.25, 0.0, Refused(2)],
    ),
    one(
        DiceLoss,
        ("masks", "true_masks"),
        soft_dice=[False, True],
        average_loss=[True, False],
        channel_average=[True, False],
        channel_weights=[{1: 2.0}, {0: 3.0}, None, *REFUSED_WEIGHTS],
        epsilon=[1e-6, 0.5, Refused("x")],
    ),
    one(
        FocalLoss,
        ("shares", "bits"),
        gamma=[2.0, 1.0, Refused(-1)],
        alpha=[0.25, 0.5, Refused(2)],
        sample_reduction=["mean", "sum", Refused("least")],
        shape_reduction=["sum", "mean", Refused("least")],
        from_logits=[False, True],
        normalize=[True, False],
        follows=("average_loss",),
    ),
    # Losses without settings of their own.
    *[
        one(row.cls, ("x", "t"), average_loss=[True, False])
        for row in ROWS
        if issubclass(row.cls, PairLoss) and row.cls.__init__ is PairLoss.__init__
    ],
    one(
        L1_Loss,
        ("x", "t"),
        average_loss=[True, False],
        loss_type=["Smooth", "L1", "Huber", Refused("L3")],
        beta=[1.0, 0.5, Refused(0)],
        follows=("function_name",),
    ),
    *[
        Case(
            cls,
            lambda fw, cls=cls, model=None, **settings: [
                LambdaOp(lambda x: x * 0 + 1, "x", "one"),
                cls("one", "y", model or fw.build(LAYERS, None), **settings),
            ],
            {"model": [MODEL], "beta": [0.5, Refused("x")]},
        )
        for cls in (L2Regularization, L2Regularizaton)
    ],
    Case(
        SuperLoss,
        lambda fw, loss=None, **settings: [
            SuperLoss(
                loss or MeanSquaredError(("x", "t"), "y"),
                output_confidence="y2",
                **{"threshold": 1.0, "regularization": 1.0, **settings},
            )
        ],
        {
            "threshold": [2.0, "exp", Refused("log")],
            "regularization": [0.5, Refused(0)],
            "average_loss": [False],
        },
        ("loss",),
    ),
    Case(
        MixUpBatch,
        lambda fw, **settings: [MixUpBatch(("x", "t"), ("y", "y2"), **settings)],
        {"alpha": [Refused(0)]},
        ("shared_beta", "beta"),
    ),
    Case(
        CutMixBatch,
        lambda fw, **settings: [CutMixBatch(("images", "masks"), ("y", "y2"), **settings)],
        {"alpha": [Refused(0), Refused("x")]},
        ("beta",),
    ),
    *meta_cases(LambdaOp, __import__("fastnet.op.tensorop.meta", fromlist=["meta"])),
    # ------------------------------------------------------------------ on arrays
    Case(numpyop.NumpyOp, lambda fw: [numpyop.NumpyOp("x", "y")], follows=("in_place_edits",)),
    one(
        numpyop.LambdaOp,
        "x",
        fn=[lambda x: x + 1, lambda x: x * 2, Refused(3), Refused(lambda x, y: x)],
    ),
    Case(
        numpyop.Delete,
        lambda fw: [numpyop.LambdaOp(lambda x: x, "x", "gone"), numpyop.Delete("gone")],
    ),
    one(univariate.Binarize, "x", threshold=[0.25, -0.5, Refused("x")]),
    one(univariate.ChannelTranspose, "images", axes=[(2, 0, 1), (1, 0, 2), Refused((0, 0))]),
    one(univariate.ExpandDims, "x", axis=[-1, 0, Refused("x")]),
    one(
        univariate.Hadamard, "classes", n_classes=[3, 4, Refused(9)], code_length=[4, 8, Refused(3)]
    ),
    one(
        univariate.Minmax,
        "x",
        epsilon=[1e-7, 10.0, Refused("x")],
        new_min=[0.0, -1.0, Refused(2.0)],
        new_max=[1.0, 3.0, Refused("x")],
    ),
    one(
        univariate.Onehot,
        "classes",
        num_classes=[3, 5, Refused(0)],
        label_smoothing=[0.0, 0.5, Refused(2)],
    ),
    one(univariate.Reshape, "images", shape=[(4, -1), (-1,), Refused((-1, -1))]),
    one(univariate.ToArray, "x", dtype=[None, "float64", "int32", Refused("huge")]),
    *meta_cases(numpyop.LambdaOp, numpy_meta),
]


def network_of(fw: Framework, ops: list[Any]) -> Any:
    on_arrays = isinstance(ops[-1], numpyop.NumpyOp)
    return fw.network([], ops) if on_arrays else fw.network(ops)


def outcome(fw: Framework, make: Callable[[], Any]) -> list[Any]:
    """Return the results of two steps, and the weights after them."""
    network = make()
    results = [fw.step(network, BATCH, "train") for _ in range(2)]
    return [*results, [fw.weights(model) for model in network.models]]


def refusal(fw: Framework, make: Callable[[], Any]) -> list[Any]:
    """Return the error of a network whose settings are refused."""
    with pytest.raises((AssertionError, LookupError, TypeError, ValueError)) as caught:
        outcome(fw, make)
    # Keras numbers its layers.
    return [caught.type, re.sub(r"_\d+", "", str(caught.value).partition("\n")[0])]


def other_model(fw: Framework, value: Any) -> Any:
    return fw.build(OTHER_LAYERS, None) if value is MODEL else value


def test_every_op_and_each_of_its_attributes_is_here() -> None:
    rows = {row.cls for row in [*ROWS, *NUMPY_ROWS]}
    assert rows == {case.cls for case in CASES}


each_case = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.cls.__module__}.{case.cls.__name__}"
)


@each_case
def test_changed_settings(fw: Framework, case: Case) -> None:
    op = case.make(fw)[-1]
    public = {name for name in vars(op) if not name.startswith("_")}
    told = {*case.changes, *case.follows, *KEYS, "in_place_edits"}
    assert public <= told, f"{public - told} of {case.cls.__name__} can be changed"
    for name, values in case.changes.items():
        if name in KEYS:
            continue
        for value in values:
            is_refused = isinstance(value, Refused)
            value = value.value if is_refused else value
            is_refused |= name == "eval_layers" and fw.target == "tf"  # only for torch

            def changed(is_new: bool) -> Any:
                ops = case.make(fw)
                network = network_of(fw, ops)
                if case.trains or not is_new:
                    fw.step(network, BATCH, "train" if case.trains else "infer")
                settings = {name: other_model(fw, value)}  # noqa: B023
                if is_new:
                    # What a training op has added up is lost with it, but its model stays.
                    if case.trains:
                        settings["model"] = ops[-1].model
                    return network_of(fw, case.make(fw, **settings))
                setattr(ops[-1], name, settings[name])  # noqa: B023
                return network

            run = refusal if is_refused else outcome
            own, new = (run(fw, functools.partial(changed, is_new)) for is_new in (False, True))
            assert_same(own, new, f"{name}={value!r}")


@each_case
def test_changed_limits(fw: Framework, case: Case) -> None:
    """Other modes and other datasets, set anew and changed in place."""
    ops = case.make(fw)
    network, op = network_of(fw, ops), ops[-1]
    fw.step(network, BATCH, "eval" if op.mode else "train")

    def runs(mode: str, ds_id: str = "") -> bool:
        with network(mode=mode, epoch=1, ds_id=ds_id):
            return op in [*network.ctx_ops, *network.ctx_postprocessing]

    op.mode = {"train"}
    assert [runs("train"), runs("eval")] == [True, False]
    op.mode.add("eval")
    assert [runs("train"), runs("eval"), runs("test")] == [True, True, False]
    op.mode = "!test"
    assert [runs("train"), runs("test")] == [True, False]
    op.mode.clear()
    op.ds_id = {"a"}
    assert [runs("test", "a"), runs("test", "b")] == [True, False]
    op.mode = {"often"}
    with pytest.raises(AssertionError, match="Unknown mode"):
        runs("train")
    op.mode = set()
    assert runs("train", "a")
