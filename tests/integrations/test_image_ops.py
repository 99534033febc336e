"""FastEstimator's image augmentation, which fastnet does not copy, run by fastnet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

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
