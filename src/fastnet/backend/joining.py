"""Combines the results of several processes or devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastnet._nest import leaves_of, map_leaves


class TensorKind(NamedTuple):
    """The functions that combine the tensors of a framework.

    Attributes:
        is_tensor: Whether a value is a tensor.
        has_rows: Whether a tensor has a first axis.
        is_number: Whether a tensor is a real scalar.
        concatenate: Concatenates tensors along the first axis.
        mean_like: Converts a mean to the dtype of a given tensor, or to float64 for integers.
        errors: What `concatenate`, or numpy's, raises for incompatible shapes.
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
    """Combine the results of several processes.

    Tensors and arrays are concatenated along the first axis. Numbers become their mean, weighted by
    `samples`, or where that is None by the length of the first axes. Other values are taken from
    the first process.

    Raises:
        ValueError: If the processes have different keys, or different numbers of values under one.
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
    """Combine the leaves of results with the same keys by ``join(key, leaves)``.

    `owners` and `seen` name the results and the data they come from in errors.

    Raises:
        ValueError: If a value has more leaves in one result than in another.
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
    """Return the number of samples of each process, or equal weights where it is unknown."""
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
