"""Results of several processes or devices, put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastnet._nest import leaves_of, map_leaves

__all__ = ["TensorKind", "combine", "join_results"]


class TensorKind(NamedTuple):
    """What a framework's tensors are put together by.

    Attributes:
        is_tensor: Whether a value is one.
        has_rows: Whether a tensor has a first axis.
        is_number: Whether a tensor is a single number or truth value, but no complex one.
        concatenate: Joins tensors along the first axis.
        mean_like: Makes a tensor of a mean, of the type of a tensor; of float64 if that one's has
            no fractions.
        errors: What `concatenate`, or numpy's, raises for shapes that do not fit.
    """

    is_tensor: Callable[[Any], bool]
    has_rows: Callable[[Any], bool]
    is_number: Callable[[Any], bool]
    concatenate: Callable[[list[Any]], Any]
    mean_like: Callable[[float, Any], Any]
    errors: tuple[type[Exception], ...]


def join_results(
    results: Sequence[Mapping[str, Any]], samples: Sequence[int | None], kind: TensorKind
) -> dict[str, Any]:
    """Put the results of several processes together.

    Args:
        results: For each process values by key, the tensors on one device.
        samples: Of how many samples these are, or None for what can be seen of that.
        kind: What tensors are put together by.

    Returns:
        A value by key. Of scalars the mean, a float, of those that are numbers, weighed by the
        numbers of samples; tensors and arrays with axes are joined along the first. Of what is no
        number, or of scalars without a mean, the first process's.

    Raises:
        ValueError: If the processes have different keys, or one of them more values under a key.
    """
    first = results[0]
    for rank, result in enumerate(results):
        if result.keys() != first.keys():
            raise ValueError(
                f"Results are gathered under the keys {sorted(map(str, first))} on rank 0, but "
                f"{sorted(map(str, result))} on rank {rank}. Gather the same keys on each."
            )
    weights = _weights(results, samples, kind)
    return combine(
        results, lambda key, parts: _join(key, parts, weights, kind), "ranks", "the data"
    )


def combine(
    results: Sequence[Mapping[str, Any]],
    join: Callable[[str, tuple[Any, ...]], Any],
    owners: str,
    seen: str,
) -> dict[str, Any]:
    """Combine results with the same keys, value by value, however deep these lie.

    Args:
        results: For each owner a value by key.
        join: Given a key, and what stands at one place on each, gives what is to stand there.
        owners: What has the results, for error texts.
        seen: What each of them sees a part of, for error texts.

    Returns:
        A value by key.

    Raises:
        ValueError: If a value holds more in one result than in another.
    """
    combined = {}
    for key, value in results[0].items():
        leaves = [leaves_of(result[key]) for result in results]
        counts = [len(found) for found in leaves]
        if len(set(counts)) > 1:
            raise ValueError(
                f"The value of '{key}' holds different numbers of values on the {owners}, "
                f"{counts}, so that they cannot be put together. What ops return must not depend "
                f"on which part of {seen} they see."
            )
        joined = iter([join(key, parts) for parts in zip(*leaves, strict=True)])
        combined[key] = map_leaves(value, lambda _, values=joined: next(values))  # type: ignore[misc]
    return combined


def _weights(
    results: Sequence[Mapping[str, Any]], samples: Sequence[int | None], kind: TensorKind
) -> list[int]:
    """Return how many samples each process has; as many for each where that cannot be told."""
    alike = [1] * len(results)
    sizes = []
    for result, told in zip(results, samples, strict=True):
        leaves = leaves_of(dict(result))
        lengths = {int(leaf.shape[0]) for leaf in leaves if _has_rows(leaf, kind)}
        if told is None and len(lengths) != 1:
            return alike
        sizes.append(lengths.pop() if told is None else told)
    return sizes if any(sizes) and len(set(sizes)) > 1 else alike


def _has_rows(value: Any, kind: TensorKind) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return kind.is_tensor(value) and kind.has_rows(value)


def _join(key: str, parts: Sequence[Any], weights: Sequence[int], kind: TensorKind) -> Any:
    first = parts[0]
    tensors = kind.is_tensor(first)
    if any(kind.is_tensor(part) is not tensors for part in parts):
        names = [type(part).__name__ for part in parts]
        raise ValueError(
            f"The value of '{key}' is of different types on the ranks, {names}, so that they "
            "cannot be put together. Let it be a tensor on each, or on none."
        )
    if all(_has_rows(part, kind) for part in parts):
        return _concatenated(key, parts, kind)
    if not all(_is_number(part, kind) for part in parts):
        return first
    numbers = [(float(part), weight) for part, weight in zip(parts, weights, strict=True)]
    known = [(number, weight) for number, weight in numbers if not math.isnan(number)]
    total = sum(weight for _, weight in known)
    mean = sum(number * weight for number, weight in known) / total if total else math.nan
    return kind.mean_like(mean, first) if tensors else mean


def _is_number(value: Any, kind: TensorKind) -> bool:
    if kind.is_tensor(value):
        return kind.is_number(value)
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (int, float, np.number)) and not isinstance(
        value, (bool, np.complexfloating)
    )


def _concatenated(key: str, parts: Sequence[Any], kind: TensorKind) -> Any:
    join = kind.concatenate if kind.is_tensor(parts[0]) else np.concatenate
    try:
        return join(list(parts))
    except kind.errors as error:
        shapes = [tuple(part.shape) for part in parts]
        raise ValueError(
            f"The value of '{key}' has the shapes {shapes} on the ranks, which cannot be joined "
            "along the first axis. Leave it out of what is gathered, or let the others agree."
        ) from error
