"""Every function of the backend once in each framework, against numpy or a figure worked out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastnet import backend
from tests.backend.makers import FRAMEWORKS, make, read

pytestmark = pytest.mark.fast

X = np.array([[1.5, -2.0, 0.5], [4.0, 0.25, -1.0]], "float32")
Z = np.array([[1.0, -1.0, 2.0], [0.0, 1.25, -1.0]], "float32")
SHARES = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], "float32")
CLASSES = np.array([1, 0])
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
BITS = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], "float32")
SIGNS = 2 * BITS - 1
OF_CLASS = -np.log([0.5, 0.6])
OF_BITS = -np.log(np.where(BITS == 1, SHARES, 1 - SHARES))
FAR = np.abs(X - Z)
IMAGES = np.arange(12, dtype="float32").reshape(1, 2, 2, 3)
MASKS = BITS.reshape(1, 1, 2, 3)  # one channel, first as in torch

# what is called, with tensors of X, Z and the others by t, and what it must return
Case = tuple[Callable[[Callable[[Any], Any]], Any], Any]
VALUES: dict[str, Case] = {
    "abs": (lambda t: backend.abs(t(X)), np.abs(X)),
    "argmax": (lambda t: backend.argmax(t(X), axis=1), X.argmax(1)),
    "binary_crossentropy": (
        lambda t: backend.binary_crossentropy(t(SHARES), t(BITS)),
        OF_BITS.mean(),
    ),
    "cast": (lambda t: backend.cast(t(X), "int32"), X.astype("int32")),
    "categorical_crossentropy": (
        lambda t: backend.categorical_crossentropy(t(SHARES), t(ONE_HOT)),
        OF_CLASS.mean(),
    ),
    "check_nan": (lambda t: backend.check_nan(t(X)), False),
    "clip_by_value": (lambda t: backend.clip_by_value(t(X), -1, 1), X.clip(-1, 1)),
    "concat": (lambda t: backend.concat([t(X), t(Z)], axis=1), np.concatenate([X, Z], 1)),
    "convert_tensor_precision": (
        lambda t: backend.convert_tensor_precision(t(X.astype("float64"))),
        X,
    ),
    "exp": (lambda t: backend.exp(t(X)), np.exp(X)),
    "expand_dims": (lambda t: backend.expand_dims(t(X), 0), X[None]),
    "flip": (lambda t: backend.flip(t(X), 1), X[:, ::-1]),
    "gather": (lambda t: backend.gather(t(X), t(CLASSES)), X[CLASSES]),
    "gather_from_batch": (
        lambda t: backend.gather_from_batch(t(X), t(CLASSES)),
        X[[0, 1], CLASSES],
    ),
    "get_shape": (lambda t: tuple(backend.get_shape(t(X))), (2, 3)),
    "hinge": (lambda t: backend.hinge(t(SIGNS), t(X)), np.maximum(0, 1 - SIGNS * X).mean(1)),
    "huber": (
        lambda t: backend.huber(t(Z), t(X)),
        np.where(FAR <= 1, FAR**2 / 2, FAR - 0.5).mean(1),
    ),
    "iwd": (
        lambda t: backend.iwd(
            t(np.array([[1.0, 3.0]], "float32")), max_prob=0.75, eps=t(np.array([1e-9], "float32"))
        ),
        [[0.75, 0.25]],
    ),
    "l1_loss": (lambda t: backend.l1_loss(t(Z), t(X)), FAR.mean(1)),
    "lambertw": (lambda t: backend.lambertw(t(np.array([0.0, math.e], "float32"))), [0.0, 1.0]),
    "matmul": (lambda t: backend.matmul(t(X), t(Z.T.copy())), X @ Z.T),
    "maximum": (lambda t: backend.maximum(t(X), t(Z)), np.maximum(X, Z)),
    "mean_squared_error": (
        lambda t: backend.mean_squared_error(t(X), t(Z)),
        ((X - Z) ** 2).mean(1),
    ),
    "ones_like": (lambda t: backend.ones_like(t(X)), np.ones_like(X)),
    "percentile": (lambda t: backend.percentile(t(X), 0, axis=1), X.min(1, keepdims=True)),
    "permute": (lambda t: backend.permute(t(X), [1, 0]), X.T),
    "pow": (lambda t: backend.pow(t(X), 2.0), X**2),
    "reduce_max": (lambda t: backend.reduce_max(t(X), axis=1), X.max(1)),
    "reduce_mean": (lambda t: backend.reduce_mean(t(X), axis=1), X.mean(1)),
    "reduce_min": (lambda t: backend.reduce_min(t(X), axis=1), X.min(1)),
    "reduce_std": (lambda t: backend.reduce_std(t(X), axis=1), X.std(1)),
    "reduce_sum": (lambda t: backend.reduce_sum(t(X), axis=1), X.sum(1)),
    "reshape": (lambda t: backend.reshape(t(X), [3, 2]), X.reshape(3, 2)),
    "roll": (lambda t: backend.roll(t(X), 1, 1), np.roll(X, 1, 1)),
    "sign": (lambda t: backend.sign(t(X)), np.sign(X)),
    "smooth_l1_loss": (
        lambda t: backend.smooth_l1_loss(t(Z), t(X)),
        np.where(FAR < 1, FAR**2 / 2, FAR - 0.5).mean(1),
    ),
    "sparse_categorical_crossentropy": (
        lambda t: backend.sparse_categorical_crossentropy(t(SHARES), t(CLASSES)),
        OF_CLASS.mean(),
    ),
    "squeeze": (lambda t: backend.squeeze(t(X[None])), X),
    "tensor_pow": (lambda t: backend.tensor_pow(t(X), 3), X**3),
    "tensor_round": (lambda t: backend.tensor_round(t(X)), np.round(X)),
    "tensor_sqrt": (lambda t: backend.tensor_sqrt(t(np.abs(X))), np.sqrt(np.abs(X))),
    "to_shape": (lambda t: tuple(backend.to_shape(t(X))), (2, 3)),
    "to_tensor": (lambda t: backend.to_tensor({"x": t(X)}, "np")["x"], X),
    "to_type": (lambda t: "float32" in str(backend.to_type(t(X))), True),
    "transpose": (lambda t: backend.transpose(t(X)), X.T),
    "where": (lambda t: backend.where(t(X) > 0, t(X), t(Z)), np.where(X > 0, X, Z)),
    "zeros_like": (lambda t: backend.zeros_like(t(X)), np.zeros_like(X)),
    "zscore": (lambda t: backend.zscore(t(X)), (X - X.mean()) / X.std()),
    "normalize": (
        lambda t: backend.normalize(t(X), mean=0.5, std=0.25, max_pixel_value=2.0),
        (X / 2 - 0.5) / 0.25,
    ),
}


@FRAMEWORKS
@pytest.mark.parametrize("name", VALUES)
def test_values(name: str, framework: str) -> None:
    call, expected = VALUES[name]
    result = call(lambda array: make(framework, array))
    if not isinstance(result, (bool, tuple)):
        result = read(result)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@FRAMEWORKS
def test_losses_of_masks(framework: str) -> None:
    mask = MASKS if framework == "torch" else np.moveaxis(MASKS, 1, -1)
    true = make(framework, np.ascontiguousarray(mask))
    # a third of the mask is right, and nothing else is claimed
    half = make(framework, np.ascontiguousarray(mask * (np.cumsum(mask).reshape(mask.shape) == 1)))
    score = read(backend.dice_score(half, true)).reshape(())
    np.testing.assert_allclose(score, 2 * 1 / (1 + 3), rtol=1e-5)
    right = np.where(BITS == 1, SHARES, 1 - SHARES)
    weights = np.where(BITS == 1, 0.25, 0.75)
    each = -np.log(right) * (1 - right) ** 2 * weights
    found = backend.focal_loss(make(framework, BITS), make(framework, SHARES))
    np.testing.assert_allclose(read(found), (each.sum(1) / BITS.sum(1)).mean(), rtol=1e-5)


@FRAMEWORKS
def test_images(framework: str) -> None:
    image = np.ascontiguousarray(np.moveaxis(IMAGES, -1, 1)) if framework == "torch" else IMAGES
    channels, height, width = backend.get_image_dims(make(framework, image))
    assert (channels, height, width) == (3, 2, 2)
    volume = np.arange(8, dtype="float32").reshape((1, 1, 2, 2, 2))
    if framework != "torch":
        volume = volume.reshape((1, 2, 2, 2, 1))
    if framework != "numpy":
        grown = read(backend.resize_3d(make(framework, volume), [4, 4, 4]))
        assert sorted(set(grown.ravel())) == list(range(8))
        assert grown.size == 64


@FRAMEWORKS
@pytest.mark.parametrize("draw", [backend.random_normal_like, backend.random_uniform_like])
def test_random_numbers(draw: Any, framework: str) -> None:
    drawn = read(draw(make(framework, np.zeros((50, 50), "float32"))))
    uniform = draw is backend.random_uniform_like
    assert drawn.dtype == "float32"
    assert drawn.shape == (50, 50)
    assert drawn.mean() == pytest.approx(0.5 if uniform else 0, abs=0.2)
    assert drawn.std() == pytest.approx(math.sqrt(1 / 12) if uniform else 1, abs=0.2)
