"""FastEstimator's image augmentation, which fastnet does not copy, run by fastnet."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.integrations.sides import Sides, assert_same
from tests.integrations.tf_sides import MARKS, steps, tf

pytestmark = MARKS

IMAGES = np.random.default_rng(3).integers(40, 200, (3, 24, 24, 3)).astype("uint8")
MASKS = (IMAGES[..., 0] > 128).astype("uint8")
FLOATS = (IMAGES / 255).astype("float32")

# fmt: off
PLAIN = [
    "AutoContrast", "Blur", "Brightness", "CLAHE", "ChannelDropout", "ChannelShuffle",
    "CoarseDropout", "Color", "ColorJitter", "Contrast", "Defocus", "Downscale", "Equalize",
    "GaussianBlur", "GaussianNoise", "HueSaturationValue", "ISONoise", "ImageCompression",
    "InvertImg", "MedianBlur", "MotionBlur", "MultiplicativeNoise", "Normalize", "Posterize",
    "RGBShift", "RUA", "RandomBrightnessContrast", "RandomFog", "RandomGamma", "RandomRain",
    "RandomShadow", "RandomSnow", "RandomSunFlare", "Sharpness", "ShearX", "ShearY", "Solarize",
    "ToGray", "ToSepia", "TranslateX", "TranslateY", "ZoomBlur",
]
# fmt: on

# Ops on images by themselves, with what each must be told beyond its keys.
UNIVARIATE: dict[str, dict[str, Any]] = {
    **{name: {} for name in PLAIN},
    **{
        name: {"reference_images": [IMAGES[0]], "read_fn": lambda image: image}
        for name in ("FDA", "HistogramMatching", "PixelDistributionAdaptation")
    },
    "Calibrate": {"calibration_fn": lambda image: image / 2, "mode": None},
    "FromFloat": {"max_value": 255.0, "dtype": "uint8"},
    "ToFloat": {"max_value": 255.0},
}

# Ops on images and their masks, which leave the images of a batch as large as each other.
MULTIVARIATE: dict[str, dict[str, Any]] = {
    "Affine": {},
    "CenterCrop": {"height": 12, "width": 10},
    "Crop": {"x_min": 2, "y_min": 3, "x_max": 12, "y_max": 14},
    "CropAndPad": {"px": (1, 3)},
    "CropNonEmptyMaskIfExists": {"height": 12, "width": 10},
    "ElasticTransform": {},
    "Flip": {},
    "GridDistortion": {},
    "HorizontalFlip": {},
    "LongestMaxSize": {"max_size": 16},
    "MaskDropout": {},
    "OpticalDistortion": {},
    "PadIfNeeded": {"min_height": 32, "min_width": 30},
    "RandomCrop": {"height": 12, "width": 10},
    "RandomGridShuffle": {},
    "RandomRotate90": {},
    "RandomResizedCrop": {"height": 12, "width": 10},
    "RandomSizedCrop": {"min_max_height": (10, 16), "height": 12, "width": 10},
    "Resize": {"height": 12, "width": 10},
    "Rotate": {},
    "ShiftScaleRotate": {},
    "SmallestMaxSize": {"max_size": 16},
    "Transpose": {},
    "VerticalFlip": {},
}


def image_op(sides: Sides, name: str, into: str = "image") -> Any:
    """Make an op of FastEstimator's that varies images, and their masks where it can."""
    numpyop = sides.fastestimator.op.numpyop
    if name in UNIVARIATE:
        op_class = getattr(numpyop.univariate, name)
        return op_class(inputs="image", outputs=into, **UNIVARIATE[name])
    op_class = getattr(numpyop.multivariate, name)
    return op_class(image_in="image", mask_in="mask", **MULTIVARIATE[name])


def arrays(name: str) -> dict[str, np.ndarray]:
    return {"image": (FLOATS if name == "FromFloat" else IMAGES).copy(), "mask": MASKS.copy()}


def agree(sides: Sides, program: Callable[[Any], Any]) -> Any:
    """Run a program in both with the same seeds, and check that results are equal to the bit."""
    results = []
    for lib in (sides.fastestimator, sides.fastnet):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        results.append(program(lib))
    assert_same(results[1], results[0])
    return results[1]


def of_network(lib: Any, framework: str, pops: Any, data: dict[str, np.ndarray]) -> Any:
    """Run a network that only has postprocessing to do for images, and give arrays."""
    ops = lib.op.tensorop
    made = ops.LambdaOp(lambda mask: mask * 2, "mask", "twice")
    if framework == "torch":
        network = lib.network.TorchNetwork([made], pops)
        batch = {key: torch.from_numpy(value) for key, value in data.items()}
    else:
        network = lib.network.TFNetwork([made], pops)
        batch = {key: tf.constant(value) for key, value in data.items()}
    results = steps(network, [batch] * 2, "eval")
    return [{key: np.asarray(value) for key, value in one.items()} for one in results]


@pytest.mark.parametrize("name", [*UNIVARIATE, *MULTIVARIATE])
def test_as_postprocessing(sides: Sides, name: str) -> None:
    def program(lib: Any) -> Any:
        return of_network(lib, "torch", [image_op(sides, name)], arrays(name))

    results = agree(sides, program)
    assert all(result["mask"].shape[0] == len(IMAGES) for result in results)
    if name != "RandomFog":  # too thin to be seen in so small an image
        assert not np.array_equal(results[0]["image"], arrays(name)["image"])


@pytest.mark.parametrize("name", ["HorizontalFlip", "Resize", "Blur", "RUA", "Calibrate"])
def test_as_postprocessing_in_tensorflow(sides: Sides, name: str) -> None:
    agree(sides, lambda lib: of_network(lib, "tf", [image_op(sides, name)], arrays(name)))


def test_in_a_row_with_ops_of_fastnet(sides: Sides) -> None:
    """Modes, schedules and new keys, in one postprocessing of ops of both packages."""

    def program(lib: Any) -> Any:
        numpyop = lib.op.numpyop
        flip = sides.fastestimator.op.numpyop.multivariate.HorizontalFlip
        pops = [
            flip(image_in="image", mask_in="mask", mode="eval"),
            flip(image_in="image", mode="train"),
            lib.schedule.EpochScheduler({1: image_op(sides, "Blur", into="blurred"), 2: None}),
            numpyop.univariate.Minmax(inputs="image", outputs="scaled"),
            image_op(sides, "Resize"),
            numpyop.univariate.ChannelTranspose(inputs="image", outputs="front"),
            numpyop.Delete("mask"),
        ]
        # fastnet also removes the batch's own mask, which FastEstimator cannot
        return [
            {key: value for key, value in result.items() if key != "mask"}
            for result in of_network(lib, "torch", pops, arrays("Blur"))
        ]

    found = agree(sides, program)[0]
    assert found["blurred"].shape == (3, 24, 24, 3)
    assert found["front"].shape == (3, 3, 12, 10)


SAMPLES = ["HorizontalFlip", "Rotate", "RandomScale", "Blur", "GaussianNoise", "RUA", "Resize"]


@pytest.mark.parametrize("name", SAMPLES)
def test_in_forward_numpyop(sides: Sides, name: str) -> None:
    """Sample by sample, where each may get another size, as a pipeline runs them."""

    def program(lib: Any) -> Any:
        told = {**MULTIVARIATE, "RandomScale": {}}
        if name == "RandomScale":
            multivariate = sides.fastestimator.op.numpyop.multivariate
            op = multivariate.RandomScale(image_in="image", mask_in="mask", **told[name])
        else:
            op = image_op(sides, name)
        ops = [op, lib.op.numpyop.LambdaOp(lambda image: image.mean(), "image", "mean")]
        samples = [{"image": IMAGES[i].copy(), "mask": MASKS[i].copy()} for i in range(3)]
        for sample in samples:
            lib.op.numpyop.forward_numpyop(ops, sample, {"mode": "train"})
        return samples

    assert all("mean" in sample for sample in agree(sides, program))


@pytest.mark.parametrize("framework", ["torch", "tf", "np"])
def test_in_forward_numpyop_on_batches(sides: Sides, framework: str) -> None:
    def program(lib: Any) -> Any:
        make = {"torch": torch.from_numpy, "tf": tf.constant, "np": lambda value: value}[framework]
        data = {key: make(value) for key, value in arrays("Blur").items()}
        ops = [image_op(sides, name) for name in ("HorizontalFlip", "Blur", "Resize")]
        lib.op.numpyop.forward_numpyop(ops, data, {"mode": "train"}, batched=framework)
        assert {type(value) for value in data.values()} == {type(make(IMAGES))}
        return {key: np.asarray(value) for key, value in data.items()}

    assert agree(sides, program)["mask"].shape == (3, 12, 10)


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_in_metas(sides: Sides, framework: str) -> None:
    """Drawn by numpy's generator, as FastEstimator's own metas draw."""

    def program(lib: Any) -> Any:
        meta = lib.op.numpyop.meta
        pops = [
            meta.Sometimes(image_op(sides, "HorizontalFlip"), prob=0.5),
            meta.OneOf(image_op(sides, "Blur"), image_op(sides, "ToSepia"), probs=[0.3, 0.7]),
            meta.Repeat(image_op(sides, "Rotate"), repeat=2),
            meta.Fuse([image_op(sides, "VerticalFlip"), image_op(sides, "Resize")]),
            meta.Sometimes(meta.OneOf(image_op(sides, "ToGray"), image_op(sides, "InvertImg"))),
        ]
        return [of_network(lib, framework, pops, arrays("Blur")) for _ in range(6)]

    drawn = [result["image"].mean() for results in agree(sides, program) for result in results]
    assert len(set(drawn)) > 6


def test_ops_of_fastnet_in_randaugment(sides: Sides) -> None:
    """FastEstimator's RUA draws among ops of either package."""

    def program(lib: Any) -> Any:
        meta = lib.op.numpyop.meta
        fe = sides.fastestimator.op.numpyop
        choices = [
            meta.Sometimes(fe.univariate.rua.Rotate(inputs="image", outputs="image"), prob=0.9),
            fe.univariate.Brightness(inputs="image", outputs="image"),
        ]
        op = fe.univariate.RUA(inputs="image", outputs="image", choices=choices)
        return of_network(lib, "torch", [op], arrays("RUA"))

    agree(sides, program)


def test_boxes(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        multivariate = sides.fastestimator.op.numpyop.multivariate
        told: dict[str, Any] = {"image_in": "image", "bbox_in": "boxes", "bbox_params": "coco"}
        ops = [
            multivariate.RandomSizedBBoxSafeCrop(height=12, width=10, **told),
            multivariate.BBoxSafeRandomCrop(**told),
            multivariate.HorizontalFlip(**told),
            multivariate.RandomCropFromBorders(crop_left=0.1, **told),
        ]
        boxes = np.array([[4.0, 5.0, 8.0, 9.0, 1.0], [10.0, 3.0, 6.0, 12.0, 2.0]])
        sample = {"image": IMAGES[0].copy(), "boxes": boxes}
        lib.op.numpyop.forward_numpyop(ops, sample, {"mode": "train"})
        near = multivariate.RandomCropNearBBox(image_in="image", cropping_bbox_in="box")
        other = {"image": IMAGES[0].copy(), "box": [4, 4, 16, 16]}
        lib.op.numpyop.forward_numpyop([near], other, {"mode": "train"})
        return sample["image"], np.asarray(sample["boxes"], "float64"), other["image"]

    agree(sides, program)


def test_files(sides: Sides, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "image.png"), IMAGES[0])

    def program(lib: Any) -> Any:
        read = sides.fastestimator.op.numpyop.univariate.ReadImage
        ops = [
            read(inputs="path", outputs="image", parent_path=str(tmp_path)),
            lib.op.numpyop.univariate.Binarize(threshold=128, inputs="image", outputs="bits"),
        ]
        sample: dict[str, Any] = {"path": "image.png"}
        lib.op.numpyop.forward_numpyop(ops, sample, {"mode": "train"})
        return sample

    assert np.array_equal(agree(sides, program)["image"], IMAGES[0][..., ::-1])


def test_words(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        univariate = sides.fastestimator.op.numpyop.univariate
        numbers = {"to": 1, "be": 2, "or": 3, "not": 4}
        ops = [
            univariate.Tokenize(inputs="text", outputs="text", to_lower_case=True),
            univariate.WordtoId(mapping=numbers, inputs="text", outputs="ids"),
            univariate.PadSequence(max_len=8, inputs="ids", outputs="ids"),
            lib.op.numpyop.univariate.ToArray(inputs="ids", outputs="ids", dtype="int32"),
        ]
        sample: dict[str, Any] = {"text": "To be or not to be"}
        lib.op.numpyop.forward_numpyop(ops, sample, {"mode": "train"})
        return sample

    assert agree(sides, program)["ids"].tolist() == [1, 2, 3, 4, 1, 2, 0, 0]


def test_every_image_op_is_here(sides: Sides) -> None:
    """What FastEstimator has and fastnet has not runs here, or is known to be apart."""
    numpyop = sides.fastestimator.op.numpyop
    own = set(sides.fastnet.op.numpyop.univariate.__all__)
    there = {name for name in dir(numpyop.univariate) if name[0] != "_"} - own
    there |= {name for name in dir(numpyop.multivariate) if name[0] != "_"}
    elsewhere = {
        *("RandomScale", "RandomSizedBBoxSafeCrop", "BBoxSafeRandomCrop", "RandomCropFromBorders"),
        *("RandomCropNearBBox", "ReadImage", "Tokenize", "WordtoId", "PadSequence"),
        "RandomShapes",  # draws from a generator that nobody can seed
        "ReadMat",  # reads a file of Matlab's, as ReadImage reads an image
    }
    assert there == {*UNIVARIATE, *MULTIVARIATE, *elsewhere}
