"""The overhead that each tensor op adds to a step, beyond the framework calls that it makes.

An op that needs others (a gradient needs something to differentiate, a meta op another op) is
measured with them, and their own cost is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bench.workloads.workload import Goal, Workload

Arrays = dict[str, "np.ndarray[Any, Any]"]
# Imports a module of the package whose ops are measured, by its name there.
Modules = Callable[[str], Any]
# Makes a model with `build` of that package.
Build = Callable[[], Any]
Make = Callable[[Modules, Build], list[Any]]

BATCH, CLASSES = 8, 4
LEARNING_RATE = 0.01
_GOAL = Goal(2.0)


@dataclass(frozen=True)
class OpCase:
    """An op and its batch.

    Attributes:
        name: Its name, also that of the hand-written calls.
        title: Its name in tables.
        ops: Makes the ops of a network.
        arrays: The batch.
        outputs: The keys that the network adds to the batch, in order.
        mode: The mode to run in.
        runs_model: Whether the calls run a model, around which a network disables gradients.
        beside: The ops that this one needs, or runs: their own cost is subtracted.
        not_fe: Whether FastEstimator's op fails.
    """

    name: str
    title: str
    ops: Make
    arrays: Arrays
    outputs: tuple[str, ...] = ("z",)
    mode: str = "eval"
    runs_model: bool = False
    beside: OpCase | None = None
    not_fe: bool = False

    @property
    def updates(self) -> bool:
        """Whether a model is trained."""
        return self.name == "update"


@dataclass(frozen=True)
class OpCost(Workload):
    """A step of a network of one op, beside its hand-written calls and a network of no work.

    Attributes:
        case: The op and its batch.
    """

    case: OpCase

    unit: ClassVar = "us"
    group: ClassVar[str | None] = "op_cost"
    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet", "fastestimator"})

    @property
    def goals(self) -> dict[str, Goal]:
        """The most that an op may add, in microseconds."""
        return dict.fromkeys(self.references, _GOAL)

    @property
    def steps_to_check(self) -> int:
        """Three where a model is trained, after which the weights are compared."""
        return 3 if self.case.updates else 1

    def seed(self) -> None:
        """Seed every random number generator."""
        import torch

        torch.manual_seed(0)
        np.random.seed(0)

    def model(self) -> Any:
        """Return the model of ops that have one, always with the same weights."""
        import torch

        torch.manual_seed(0)
        return torch.nn.Linear(16, CLASSES)

    def batch(self) -> dict[str, Any]:
        """Return a batch, always the same."""
        import torch

        return {key: torch.as_tensor(value) for key, value in self.case.arrays.items()}


# --- batches -------------------------------------------------------------------------------------


def _numbers(*shape: int, seed: int = 0) -> Any:
    """Return normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _fractions(*shape: int) -> Any:
    """Return numbers between 0 and 1."""
    return np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32)


def _bits(*shape: int) -> Any:
    """Return zeros and ones."""
    return np.random.default_rng(2).integers(0, 2, shape).astype(np.float32)


_INDICES = np.random.default_rng(2).integers(0, CLASSES, BATCH)
_ONE_HOT = np.eye(CLASSES, dtype=np.float32)[_INDICES]


def _arrays(x: Any, y: Any = None) -> Arrays:
    return {"x": x} if y is None else {"x": x, "y": y}


_IMAGES = _fractions(BATCH, 3, 6, 6)
_MATRIX = _numbers(BATCH, CLASSES)
_FRACTIONS = _fractions(BATCH, CLASSES)
_SIGNS = 2 * _bits(BATCH, CLASSES) - 1

_images = _arrays(_IMAGES)
_volumes = _arrays(_numbers(2, 2, 4, 4, 4))
_matrix = _arrays(_MATRIX)
_two = _arrays(_MATRIX, _numbers(BATCH, CLASSES, seed=1))
_classes = _arrays(_MATRIX, _INDICES)
_hot = _arrays(_MATRIX, _ONE_HOT)
_binary = _arrays(_fractions(BATCH, 1), _bits(BATCH, 1))
_features = _arrays(_numbers(BATCH, 16))

# --- ops -----------------------------------------------------------------------------------------


def _op(name: str, *args: Any, **options: Any) -> Make:
    """Return what makes a network of one op, whose class is named like "loss.Hinge"."""
    package, _, kind = f"op.tensorop.{name}".rpartition(".")
    return lambda modules, build: [getattr(modules(package), kind)(*args, **options)]


def _compare(name: str, **options: Any) -> Make:
    return _op(f"loss.{name}", inputs=["x", "y"], outputs="z", **options)


def negative(x: Any) -> Any:
    """Return `-x`, the work of an op in a meta op."""
    return -x


def double(x: Any) -> Any:
    """Return `x + x`."""
    return x + x


def square(x: Any) -> Any:
    """Return a loss to differentiate."""
    return x * x


def _lambda(modules: Modules, fn: Callable[[Any], Any], source: str, target: str) -> Any:
    return modules("op.tensorop").LambdaOp(fn=fn, inputs=source, outputs=target)


def _watched(modules: Modules, build: Build) -> list[Any]:
    return [modules("op.tensorop.gradient").Watch("x"), _lambda(modules, square, "x", "loss")]


def _update(modules: Modules, build: Build) -> list[Any]:
    model = build()
    package = modules("op.tensorop.model")
    return [
        package.ModelOp(model, "x", "z"),
        _lambda(modules, square, "z", "loss"),
        package.UpdateOp(model, "loss"),
    ]


def _twice(modules: Modules, build: Build) -> list[Any]:
    return [_lambda(modules, negative, "x", "y"), _lambda(modules, double, "y", "z")]


def _negations(count: int) -> Make:
    return lambda modules, build: [_lambda(modules, negative, "x", "x") for _ in range(count)]


def _one_of(modules: Modules, build: Build) -> list[Any]:
    ops = [_lambda(modules, fn, "x", "z") for fn in (negative, double)]
    return [modules("op.tensorop.meta").OneOf(*ops, probs=[1.0, 0.0])]


def _around(name: str, inner: Make, **options: Any) -> Make:
    """Return what makes a meta op around one op."""
    return lambda modules, build: [
        getattr(modules("op.tensorop.meta"), name)(*inner(modules, build), **options)
    ]


def _after_watching(name: str, **options: Any) -> Make:
    """Return what makes an op that differentiates, and the ops that it needs."""
    op = _op(f"gradient.{name}", **options)
    return lambda modules, build: [*_watched(modules, build), *op(modules, build)]


_WATCHED = OpCase("watched", "", _watched, _matrix, outputs=("loss",))
_ONCE = OpCase("once", "", _negations(1), _matrix, outputs=("x",))
_TWICE = OpCase("twice", "", _twice, _matrix)
_THRICE = OpCase("thrice", "", _negations(3), _matrix, outputs=("x",))
# FastEstimator 1.7.0 looks for the first of no indices, and normalizes with torchvision, which its
# environment lacks.

CASES = (
    OpCase("argmax", "Argmax", _op("Argmax", ["x"], ["z"], axis=1), _matrix),
    OpCase("average", "Average", _op("Average", ["x", "y"], "z"), _two),
    OpCase("gather", "Gather", _op("Gather", "x", "z", indices="y"), _classes),
    OpCase(
        "normalize",
        "Normalize",
        _op("Normalize", "x", "z", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), max_pixel_value=1.0),
        _images,
        not_fe=True,
    ),
    OpCase(
        "permute", "Permute", _op("Permute", "x", "z", permutation=[0, 3, 1, 2]), _arrays(_IMAGES)
    ),
    OpCase("reshape", "Reshape", _op("Reshape", "x", "z", shape=[-1, 108]), _arrays(_IMAGES)),
    OpCase(
        "resize_3d",
        "Resize3D",
        _op("Resize3D", "x", "z", output_shape=[2, 2, 2]),
        _arrays(_numbers(2, 2, 4, 4, 4)),
    ),
    OpCase("un_hadamard", "UnHadamard", _op("UnHadamard", "x", "z", n_classes=4), _matrix),
    OpCase("delete", "Delete", _op("Delete", "x"), _two, outputs=()),
    OpCase("lambda_op", "LambdaOp", _op("LambdaOp", fn=negative, inputs="x", outputs="z"), _matrix),
    OpCase("sparse", "CrossEntropy, sparse", _compare("CrossEntropy", from_logits=True), _classes),
    OpCase(
        "categorical", "CrossEntropy, categorical", _compare("CrossEntropy", from_logits=True), _hot
    ),
    OpCase(
        "categorical_weighted",
        "CrossEntropy, categorical, weighted",
        _compare("CrossEntropy", from_logits=True, class_weights={0: 2.0, 3: 0.5}),
        _hot,
    ),
    OpCase("binary", "CrossEntropy, binary", _compare("CrossEntropy"), _binary),
    OpCase("dice", "DiceLoss", _compare("DiceLoss"), _arrays(_IMAGES, _bits(BATCH, 3, 6, 6))),
    OpCase("focal", "FocalLoss", _compare("FocalLoss"), _arrays(_FRACTIONS, _bits(BATCH, CLASSES))),
    OpCase("hinge", "Hinge", _compare("Hinge"), _arrays(_MATRIX, _SIGNS)),
    OpCase("l1", "L1_Loss", _compare("L1_Loss"), _two),
    OpCase(
        "l2",
        "L2Regularizaton",
        lambda modules, build: [
            modules("op.tensorop.loss").L2Regularizaton("x", "z", model=build())
        ],
        _arrays(_numbers(BATCH)),
        runs_model=True,
    ),
    OpCase("mse", "MeanSquaredError", _compare("MeanSquaredError"), _two),
    OpCase("watch", "Watch", _op("gradient.Watch", "x"), _matrix, outputs=("x",)),
    OpCase(
        "gradient",
        "GradientOp",
        _after_watching("GradientOp", finals="loss", outputs="z", inputs="x"),
        _matrix,
        beside=_WATCHED,
    ),
    OpCase(
        "fgsm",
        "FGSM",
        _after_watching("FGSM", data="x", loss="loss", outputs="z"),
        _matrix,
        beside=_WATCHED,
    ),
    OpCase(
        "model",
        "ModelOp",
        lambda modules, build: [modules("op.tensorop.model").ModelOp(build(), "x", "z")],
        _features,
        runs_model=True,
    ),
    OpCase(
        "update",
        "ModelOp, LambdaOp and UpdateOp",
        _update,
        _features,
        outputs=("z", "loss"),
        mode="train",
    ),
    OpCase(
        "fuse",
        "Fuse, around 2 LambdaOps",
        lambda modules, build: [modules("op.tensorop.meta").Fuse(_twice(modules, build))],
        _matrix,
        beside=_TWICE,
    ),
    OpCase("one_of", "OneOf, around 2 LambdaOps", _one_of, _matrix, beside=_ONCE),
    OpCase(
        "repeat",
        "Repeat, a LambdaOp 3 times",
        _around("Repeat", _negations(1), repeat=3),
        _matrix,
        outputs=("x",),
        beside=_THRICE,
    ),
    OpCase(
        "sometimes",
        "Sometimes, around a LambdaOp",
        _around("Sometimes", _negations(1), prob=1.0),
        _matrix,
        outputs=("x",),
        beside=_ONCE,
    ),
)

WORKLOADS = tuple(OpCost(f"op_{case.name}", case.title, case) for case in CASES)
