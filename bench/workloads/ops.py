"""Every tensor op with a small batch: what is measured to see what an op adds to a step.

An op that means nothing by itself (a gradient needs something to differentiate, a meta op another
op) stands with the ops that it needs, and what these cost by themselves is taken off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Arrays = dict[str, "np.ndarray[Any, Any]"]
# Imports a module of the package whose ops are measured, by its name there.
Modules = Callable[[str], Any]
# Makes a model with `build` of that package.
Build = Callable[[], Any]

BATCH, CLASSES = 8, 4


@dataclass(frozen=True)
class OpCase:
    """An op, and what it is given.

    Attributes:
        name: How the functions that do its work by hand are called, too.
        title: How the report calls it.
        ops: Makes the ops of a network.
        arrays: Makes the batch, for a framework whose channels come last or not.
        outputs: The keys that the network adds to the batch, in order.
        mode: The mode to run in.
        updates: Whether a model is trained.
        draws_work: Whether random numbers decide how much it does.
        runs_model: Whether the calls would record gradients of a model's weights if nothing forbade
            it, as a network does.
        beside: The ops that this one needs, or runs, by themselves: what they cost is taken off.
        not_by: The packages, and their frameworks, whose op fails, or cannot be compared.
    """

    name: str
    title: str
    ops: Callable[[Modules, Build], list[Any]]
    arrays: Callable[[bool], Arrays]
    outputs: tuple[str, ...] = ("z",)
    mode: str = "eval"
    updates: bool = False
    draws_work: bool = False
    runs_model: bool = False
    beside: OpCase | None = None
    not_by: frozenset[tuple[str, str]] = frozenset()


def _numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return normally distributed numbers, the same every time."""
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _parts(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return numbers inside of 0 to 1."""
    import numpy as np

    return np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype(np.float32)


def _bits(*shape: int) -> np.ndarray[Any, Any]:
    """Return zeros and ones."""
    import numpy as np

    return np.random.default_rng(2).integers(0, 2, shape).astype(np.float32)


def _indices() -> np.ndarray[Any, Any]:
    """Return an index of a class for each sample."""
    import numpy as np

    return np.random.default_rng(2).integers(0, CLASSES, BATCH)


def _one_hot() -> np.ndarray[Any, Any]:
    """Return classes, one-hot."""
    import numpy as np

    return np.eye(CLASSES, dtype=np.float32)[_indices()]


def _image_shape(channels_last: bool) -> tuple[int, int, int, int]:
    return (BATCH, 6, 6, 3) if channels_last else (BATCH, 3, 6, 6)


def _matrix(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH, CLASSES)}


def _two(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH, CLASSES), "y": _numbers(BATCH, CLASSES, seed=1)}


def _places(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH, CLASSES), "y": _indices()}


def _images(channels_last: bool) -> Arrays:
    return {"x": _parts(*_image_shape(channels_last))}


def _masks(channels_last: bool) -> Arrays:
    shape = _image_shape(channels_last)
    return {"x": _parts(*shape), "y": _bits(*shape)}


def _labelled(channels_last: bool) -> Arrays:
    return {"x": _parts(*_image_shape(channels_last)), "y": _one_hot()}


def _volumes(channels_last: bool) -> Arrays:
    return {"x": _numbers(*((2, 4, 4, 4, 2) if channels_last else (2, 2, 4, 4, 4)))}


def _probabilities(channels_last: bool) -> Arrays:
    parts = _parts(BATCH, CLASSES)
    return {"x": parts / parts.sum(axis=1, keepdims=True), "y": _indices()}


def _hot(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH, CLASSES), "y": _one_hot()}


def _yes_or_no(channels_last: bool) -> Arrays:
    return {"x": _parts(BATCH, 1), "y": _bits(BATCH, 1)}


def _many_yes_or_no(channels_last: bool) -> Arrays:
    return {"x": _parts(BATCH, CLASSES), "y": _bits(BATCH, CLASSES)}


def _logits_of_yes_or_no(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH, CLASSES), "y": _bits(BATCH, CLASSES)}


def _sides(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH, CLASSES), "y": 2 * _bits(BATCH, CLASSES) - 1}


def _features(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH, 16)}


def _loss(channels_last: bool) -> Arrays:
    return {"x": _numbers(BATCH)}


def _op(name: str, *args: Any, **options: Any) -> Callable[[Modules, Build], list[Any]]:
    """Return the function that makes a network of one op.

    Args:
        name: The class, with the package in `op.tensorop` that it lies in: "loss.Hinge".
        args: What the class is given.
        options: And by name.
    """
    package, _, kind = f"op.tensorop.{name}".rpartition(".")
    return lambda modules, build: [getattr(modules(package), kind)(*args, **options)]


def _compare(name: str, **options: Any) -> Callable[[Modules, Build], list[Any]]:
    return _op(f"loss.{name}", inputs=["x", "y"], outputs="z", **options)


def negative(x: Any) -> Any:
    """Change the sign: the one thing that an op in a meta op does here."""
    return -x


def double(x: Any) -> Any:
    """Add a tensor to itself."""
    return x + x


def square(x: Any) -> Any:
    """Return what is differentiated: a loss whose elements count alike."""
    return x * x


def _lambda(modules: Modules, fn: Callable[[Any], Any], source: str, target: str) -> Any:
    return modules("op.tensorop").LambdaOp(fn=fn, inputs=source, outputs=target)


def _super_loss(threshold: float | str) -> Callable[[Modules, Build], list[Any]]:
    def make(modules: Modules, build: Build) -> list[Any]:
        losses = modules("op.tensorop.loss")
        inner = losses.CrossEntropy(["x", "y"], "z", from_logits=True, form="sparse")
        return [losses.SuperLoss(inner, threshold=threshold)]

    return make


def _l2(modules: Modules, build: Build) -> list[Any]:
    return [modules("op.tensorop.loss").L2Regularizaton("x", "z", model=build())]


def _watched(modules: Modules, build: Build) -> list[Any]:
    return [modules("op.tensorop.gradient").Watch("x"), _lambda(modules, square, "x", "loss")]


def _gradient(modules: Modules, build: Build) -> list[Any]:
    gradient = modules("op.tensorop.gradient")
    return [
        *_watched(modules, build),
        gradient.GradientOp(finals="loss", outputs="z", inputs="x"),
    ]


def _fgsm(modules: Modules, build: Build) -> list[Any]:
    gradient = modules("op.tensorop.gradient")
    return [
        *_watched(modules, build),
        gradient.FGSM(data="x", loss="loss", outputs="z"),
    ]


def _model(modules: Modules, build: Build) -> list[Any]:
    return [modules("op.tensorop.model").ModelOp(build(), "x", "z")]


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


def _once(modules: Modules, build: Build) -> list[Any]:
    return [_lambda(modules, negative, "x", "x")]


def _thrice(modules: Modules, build: Build) -> list[Any]:
    return [_lambda(modules, negative, "x", "x") for _ in range(3)]


def _fuse(modules: Modules, build: Build) -> list[Any]:
    return [modules("op.tensorop.meta").Fuse(_twice(modules, build))]


def _one_of(modules: Modules, build: Build) -> list[Any]:
    ops = [_lambda(modules, fn, "x", "z") for fn in (negative, double)]
    return [modules("op.tensorop.meta").OneOf(*ops, probs=[1.0, 0.0])]


def _repeat(modules: Modules, build: Build) -> list[Any]:
    return [modules("op.tensorop.meta").Repeat(_lambda(modules, negative, "x", "x"), repeat=3)]


def _sometimes(modules: Modules, build: Build) -> list[Any]:
    return [modules("op.tensorop.meta").Sometimes(_lambda(modules, negative, "x", "x"), prob=1.0)]


_WATCHED = OpCase("watched", "", _watched, _matrix, outputs=("loss",))
_ONCE = OpCase("once", "", _once, _matrix, outputs=("x",))
_TWICE = OpCase("twice", "", _twice, _matrix)
_THRICE = OpCase("thrice", "", _thrice, _matrix, outputs=("x",))
# FastEstimator 1.7.0 looks for the first of no indices, and normalizes with torchvision, which its
# environment lacks. In TensorFlow it cannot delete what a batch itself holds, and it draws numbers
# in another order, so that its results cannot be compared.
_NOT_FE = frozenset({("fastestimator", "torch"), ("fastestimator", "tf")})
_NOT_FE_TF = frozenset({("fastestimator", "tf")})

CASES = (
    OpCase("argmax", "Argmax", _op("Argmax", ["x"], ["z"], axis=1), _matrix),
    OpCase("average", "Average", _op("Average", ["x", "y"], "z"), _two),
    OpCase("gather", "Gather", _op("Gather", "x", "z", indices="y"), _places),
    OpCase(
        "gather_largest",
        "Gather, the largest",
        _op("Gather", "x", "z"),
        _matrix,
        not_by=_NOT_FE,
    ),
    OpCase(
        "normalize",
        "Normalize",
        _op("Normalize", "x", "z", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), max_pixel_value=1.0),
        _images,
        not_by=_NOT_FE,
    ),
    OpCase("permute", "Permute", _op("Permute", "x", "z", permutation=[0, 3, 1, 2]), _images),
    OpCase("reshape", "Reshape", _op("Reshape", "x", "z", shape=[-1, 108]), _images),
    OpCase("resize_3d", "Resize3D", _op("Resize3D", "x", "z", output_shape=[2, 2, 2]), _volumes),
    OpCase("un_hadamard", "UnHadamard", _op("UnHadamard", "x", "z", n_classes=4), _matrix),
    OpCase("delete", "Delete", _op("Delete", "x"), _two, outputs=(), not_by=_NOT_FE_TF),
    OpCase("lambda_op", "LambdaOp", _op("LambdaOp", fn=negative, inputs="x", outputs="z"), _matrix),
    OpCase("sparse", "CrossEntropy, sparse", _compare("CrossEntropy", from_logits=True), _places),
    OpCase(
        "sparse_probabilities",
        "CrossEntropy, sparse, no logits",
        _compare("CrossEntropy", form="sparse"),
        _probabilities,
    ),
    OpCase(
        "sparse_weighted",
        "CrossEntropy, sparse, weighted",
        _compare("CrossEntropy", from_logits=True, form="sparse", class_weights={0: 2.0, 3: 0.5}),
        _places,
    ),
    OpCase(
        "categorical", "CrossEntropy, categorical", _compare("CrossEntropy", from_logits=True), _hot
    ),
    OpCase(
        "categorical_weighted",
        "CrossEntropy, categorical, weighted",
        _compare("CrossEntropy", from_logits=True, class_weights={0: 2.0, 3: 0.5}),
        _hot,
    ),
    OpCase("binary", "CrossEntropy, binary", _compare("CrossEntropy"), _yes_or_no),
    OpCase(
        "binary_weighted",
        "CrossEntropy, binary, weighted",
        _compare("CrossEntropy", class_weights={1: 3.0}),
        _yes_or_no,
    ),
    OpCase("dice", "DiceLoss", _compare("DiceLoss"), _masks),
    OpCase(
        "dice_weighted",
        "DiceLoss, weighted",
        # FastEstimator 1.7.0 needs the last channel's too, to weigh each by its own
        _compare("DiceLoss", channel_weights={0: 2.0, 2: 1.0}),
        _masks,
    ),
    OpCase("focal", "FocalLoss", _compare("FocalLoss"), _many_yes_or_no),
    OpCase(
        "focal_logits",
        "FocalLoss, from logits",
        _compare("FocalLoss", from_logits=True),
        _logits_of_yes_or_no,
    ),
    OpCase("hinge", "Hinge", _compare("Hinge"), _sides),
    OpCase("l1", "L1_Loss", _compare("L1_Loss"), _two),
    OpCase("l1_smooth", "L1_Loss, smooth", _compare("L1_Loss", loss_type="Smooth"), _two),
    OpCase("l1_huber", "L1_Loss, Huber", _compare("L1_Loss", loss_type="Huber"), _two),
    OpCase("l2", "L2Regularizaton", _l2, _loss, runs_model=True),
    OpCase("mse", "MeanSquaredError", _compare("MeanSquaredError"), _two),
    OpCase("super_loss", "SuperLoss around CrossEntropy", _super_loss(1.0), _places),
    OpCase("super_loss_exp", "SuperLoss, moving average", _super_loss("exp"), _places),
    OpCase("watch", "Watch", _op("gradient.Watch", "x"), _matrix, outputs=("x",)),
    OpCase("gradient", "GradientOp", _gradient, _matrix, beside=_WATCHED),
    OpCase("fgsm", "FGSM", _fgsm, _matrix, beside=_WATCHED),
    OpCase("model", "ModelOp", _model, _features, runs_model=True),
    OpCase(
        "update",
        "ModelOp, LambdaOp and UpdateOp",
        _update,
        _features,
        outputs=("z", "loss"),
        mode="train",
        updates=True,
    ),
    OpCase("fuse", "Fuse, around 2 LambdaOps", _fuse, _matrix, beside=_TWICE),
    OpCase("one_of", "OneOf, around 2 LambdaOps", _one_of, _matrix, beside=_ONCE),
    OpCase(
        "repeat",
        "Repeat, a LambdaOp 3 times",
        _repeat,
        _matrix,
        outputs=("x",),
        beside=_THRICE,
    ),
    OpCase(
        "sometimes",
        "Sometimes, around a LambdaOp",
        _sometimes,
        _matrix,
        outputs=("x",),
        beside=_ONCE,
    ),
    OpCase(
        "cutmix",
        "CutMixBatch",
        _op("augmentation.CutMixBatch", ["x", "y"], ["x", "y"]),
        _labelled,
        outputs=("x", "y"),
        mode="train",
        draws_work=True,
        not_by=_NOT_FE_TF,
    ),
    OpCase(
        "mixup",
        "MixUpBatch",
        _op("augmentation.MixUpBatch", ["x", "y"], ["x", "y"]),
        _labelled,
        outputs=("x", "y"),
        mode="train",
        not_by=_NOT_FE_TF,
    ),
)
