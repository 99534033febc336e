"""Tensors of each framework, made of arrays and read as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

FRAMEWORKS = pytest.mark.parametrize(
    "framework", ["torch", "numpy", pytest.param("tf", marks=pytest.mark.tf)]
)
WITH_GRADIENTS = pytest.mark.parametrize(
    "framework", ["torch", pytest.param("tf", marks=pytest.mark.tf)]
)


def make(framework: str, array: Any, dtype: str | None = None) -> Any:
    """Make a tensor; "bfloat16" is a type that numpy itself has not."""
    array = np.asarray(array)
    if framework == "torch":
        tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
        return tensor if dtype is None else tensor.to(getattr(torch, dtype))
    if framework == "tf":
        tf = pytest.importorskip("tensorflow")
        tensor = tf.convert_to_tensor(array)
        return tensor if dtype is None else tf.cast(tensor, dtype)
    if dtype == "bfloat16":
        pytest.skip("numpy has no bfloat16")
    return array if dtype is None else array.astype(dtype)


def read(tensor: Any) -> Any:
    """Read a tensor as an array; a bfloat16 one as float32."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    if type_name(tensor) == "bfloat16":
        tensor = pytest.importorskip("tensorflow").cast(tensor, "float32")
    return np.asarray(tensor)


def type_name(tensor: Any) -> str:
    """Name a tensor's type as numpy does."""
    name = getattr(tensor.dtype, "name", None)
    return str(tensor.dtype).removeprefix("torch.") if name is None else str(name)


def gradient(framework: str, fn: Callable[[Any], Any], array: Any) -> Any:
    """Differentiate the sum of what a function makes of an array."""
    tensor = make(framework, array)
    if framework == "torch":
        tensor.requires_grad_()
        fn(tensor).sum().backward()
        return read(tensor.grad)
    tf = pytest.importorskip("tensorflow")
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = tf.reduce_sum(fn(tensor))
    return read(tf.convert_to_tensor(tape.gradient(result, tensor)))


def slopes(fn: Callable[[Any], Any], array: Any, step: float = 1e-6) -> Any:
    """Work out the same by differences, from a function over float64 arrays."""
    found = np.zeros(array.shape)
    for place in np.ndindex(array.shape):
        low, high = array.copy(), array.copy()
        low[place] -= step
        high[place] += step
        found[place] = (np.sum(fn(high)) - np.sum(fn(low))) / (2 * step)
    return found


def in_graph(fn: Callable[..., Any], *arrays: Any) -> Any:
    """Run a function in a graph of TensorFlow that leaves the first axis of each tensor open."""
    tf = pytest.importorskip("tensorflow")
    tensors = [tf.convert_to_tensor(array) for array in arrays]
    specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in tensors]
    return tf.function(fn, input_signature=specs, autograph=False)(*tensors)
