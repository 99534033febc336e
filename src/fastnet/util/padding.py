"""Padding of arrays to a common shape."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pad_batch(batch: Sequence[MutableMapping[str, Any]], pad_value: float) -> None:
    """Pad the arrays of each key, in place, to the largest shape among the samples.

    Padding is added at the end of each axis. Values without a shape are left alone.

    Args:
        batch: The samples, whose arrays are replaced by padded ones.
        pad_value: The value to fill with.

    Raises:
        AssertionError: If the samples have different keys, or the arrays of a key have different
            numbers of axes.

    >>> import numpy as np
    >>> samples = [{"x": np.ones(1)}, {"x": np.ones(3)}]
    >>> pad_batch(samples, pad_value=0)
    >>> samples[0]["x"].tolist()
    [1.0, 0.0, 0.0]
    """
    if not batch:
        return
    keys = batch[0].keys()
    for index, sample in enumerate(batch):
        if sample.keys() != keys:
            raise AssertionError(
                f"All samples of a batch must have the same keys, but sample 0 has {sorted(keys)} "
                f"and sample {index} has {sorted(sample)}."
            )
    for key in list(keys):
        samples = [sample for sample in batch if hasattr(sample[key], "shape")]
        shapes = {tuple(sample[key].shape) for sample in samples}
        if len(shapes) < 2:
            continue
        if len({len(shape) for shape in shapes}) > 1:
            raise AssertionError(
                f"The arrays of '{key}' have different numbers of axes, so they cannot be padded "
                f"to one size. Their shapes: {sorted(shapes)}."
            )
        target_shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        for sample in samples:
            sample[key] = pad_data(sample[key], target_shape, pad_value)


def pad_data(data: NDArray[Any], target_shape: Sequence[int], pad_value: float) -> NDArray[Any]:
    """Pad an array at the end of each axis.

    Args:
        data: The array.
        target_shape: The shape to reach. It has as many axes as `data`, none of them shorter.
        pad_value: The value to fill with.

    Returns:
        A new array of shape `target_shape`.

    Raises:
        ValueError: If `target_shape` has a different number of axes, or a shorter one.

    >>> import numpy as np
    >>> pad_data(np.ones((1, 2)), target_shape=(2, 3), pad_value=-2).tolist()
    [[1.0, 1.0, -2.0], [-2.0, -2.0, -2.0]]
    """
    import numpy as np

    shape = tuple(data.shape)
    growth = [target - size for size, target in zip(shape, target_shape, strict=False)]
    if len(shape) != len(target_shape) or min(growth, default=0) < 0:
        raise ValueError(
            f"An array of shape {shape} cannot be padded to {tuple(target_shape)}: the target must "
            "have the same number of axes, and none of them smaller."
        )
    widths = [(0, count) for count in growth]
    return np.pad(data, widths, mode="constant", constant_values=pad_value)
