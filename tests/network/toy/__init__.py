"""A framework of numpy alone, as somebody else's library would be: it knows nothing of fastnet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Tensor:
    """An array, and how it was made: of which tensors, and what each of them has of a gradient."""

    def __init__(
        self, value: Any, sources: Sequence[tuple[Tensor, Callable[[Array], Array]]] = ()
    ) -> None:
        self.value: Array = np.array(value, dtype="float64")
        self.sources = list(sources)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def numpy(self) -> Array:
        return self.value

    def detached(self) -> Tensor:
        return Tensor(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.value[index])

    def __add__(self, other: Any) -> Tensor:
        other = as_tensor(other)
        return Tensor(
            self.value + other.value,
            [(one, lambda grad, one=one: summed(grad, one.shape)) for one in (self, other)],
        )

    def __mul__(self, other: Any) -> Tensor:
        other = as_tensor(other)
        return Tensor(
            self.value * other.value,
            [
                (self, lambda grad: summed(grad * other.value, self.shape)),
                (other, lambda grad: summed(grad * self.value, other.shape)),
            ],
        )

    def __sub__(self, other: Any) -> Tensor:
        return self + as_tensor(other) * -1.0

    def __matmul__(self, other: Tensor) -> Tensor:
        return Tensor(
            self.value @ other.value,
            [
                (self, lambda grad: grad @ other.value.T),
                (other, lambda grad: self.value.T @ grad),
            ],
        )

    def mean(self) -> Tensor:
        return Tensor(
            self.value.mean(),
            [(self, lambda grad: np.full(self.shape, grad / self.value.size))],
        )


def as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)


def summed(grad: Array, shape: tuple[int, ...]) -> Array:
    """Add a gradient up over what was broadcast."""
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    for axis, length in enumerate(shape):
        if length == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


def differentiate(target: Tensor, sources: Sequence[Tensor]) -> list[Tensor | None]:
    """Find the gradients of the sum of a tensor's elements."""
    order: list[Tensor] = []

    def visit(tensor: Tensor) -> None:
        if all(one is not tensor for one in order):
            for source, _ in tensor.sources:
                visit(source)
            order.append(tensor)

    visit(target)
    found: dict[int, Array] = {id(target): np.ones(target.shape)}
    for tensor in reversed(order):
        for source, share in tensor.sources:
            found[id(source)] = found.get(id(source), 0.0) + share(found[id(tensor)])
    return [Tensor(found[id(one)]) if id(one) in found else None for one in sources]


class Model:
    """A line: a matrix and a shift."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weights = [Tensor(np.ones((inputs, outputs))), Tensor(np.zeros(outputs))]

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weights[0] + self.weights[1]


class Descent:
    """An optimizer."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                weight.value = weight.value - self.rate * gradient.value
