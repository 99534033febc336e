"""Results of several workers, put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fastnet._nest import leaves_of, map_leaves

__all__ = ["join_results"]


def join_results(
    results: Sequence[Mapping[str, Any]], samples: Sequence[int | None]
) -> dict[str, Any]:
    """Put the results of several processes together.

    Args:
        results: For each process values by key.
        samples: Of how many samples these are, or None for what can be seen of that.

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
    weights = _weights(results, samples)
    joined = {}
    for key, value in first.items():
        leaves = [leaves_of(result[key]) for result in results]
        counts = [len(found) for found in leaves]
        if len(set(counts)) > 1:
            raise ValueError(
                f"The value of '{key}' holds different numbers of values on the ranks, {counts}, "
                "so that they cannot be put together. What ops return must not depend on which "
                "part of the data they see."
            )
        parts = iter([_join(key, parts, weights) for parts in zip(*leaves, strict=True)])
        joined[key] = map_leaves(value, lambda _, parts=parts: next(parts))  # type: ignore[misc]
    return joined


def _weights(results: Sequence[Mapping[str, Any]], samples: Sequence[int | None]) -> list[int]:
    """Return how many samples each process has; as many for each where that cannot be told."""
    alike = [1] * len(results)
    sizes = []
    for result, told in zip(results, samples, strict=True):
        lengths = {int(leaf.shape[0]) for leaf in leaves_of(dict(result)) if _has_rows(leaf)}
        if told is None and len(lengths) != 1:
            return alike
        sizes.append(lengths.pop() if told is None else told)
    return sizes if any(sizes) else alike


def _has_rows(value: Any) -> bool:
    return bool((tf.is_tensor(value) or isinstance(value, np.ndarray)) and len(value.shape))


def _join(key: str, parts: Sequence[Any], weights: Sequence[int]) -> Any:
    first = parts[0]
    if all(map(_has_rows, parts)):
        return _concatenated(key, parts)
    if not all(map(_is_number, parts)):
        return first
    numbers = [(float(part), weight) for part, weight in zip(parts, weights, strict=True)]
    known = [(number, weight) for number, weight in numbers if not math.isnan(number)]
    total = sum(weight for _, weight in known)
    mean = sum(number * weight for number, weight in known) / total if total else math.nan
    if not tf.is_tensor(first):
        return mean
    # of whole numbers and truth values a mean is none
    return tf.constant(mean, first.dtype if first.dtype.is_floating else tf.float64)


def _is_number(value: Any) -> bool:
    if tf.is_tensor(value):
        known = value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool
        return bool(known and value.shape.rank == 0)
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (int, float, np.number)) and not isinstance(
        value, (bool, np.complexfloating)
    )


def _concatenated(key: str, parts: Sequence[Any]) -> Any:
    try:
        if isinstance(parts[0], tf.SparseTensor):
            return tf.sparse.concat(0, list(parts))
        if tf.is_tensor(parts[0]):
            return tf.concat(list(parts), axis=0)
        return np.concatenate(list(parts))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        shapes = [tuple(part.shape) for part in parts]
        raise ValueError(
            f"The value of '{key}' has the shapes {shapes} on the ranks, which cannot be joined "
            "along the first axis. Leave it out of what is gathered, or let the others agree."
        ) from error
