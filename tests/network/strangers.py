"""Tensors of frameworks that are not there: what they say of themselves is all that there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class ArrayLike:
    """Gives an array when numpy asks for it."""

    def __init__(self, values: Any, dtype: str = "float32") -> None:
        self.values = np.asarray(values, dtype)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        values = self.values if dtype is None else self.values.astype(dtype)
        return values.copy() if copy else values


class Interface:
    """Tells numpy where its values lie."""

    def __init__(self, values: Any, dtype: str = "float32") -> None:
        self.values = np.asarray(values, dtype)

    @property
    def __array_interface__(self) -> Any:
        return self.values.__array_interface__


class OnDevice:
    """Gives its values by DLPack alone, as what lies on a device does."""

    def __init__(self, values: Any, dtype: str = "float32") -> None:
        self.values = torch.from_numpy(np.array(values, dtype))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("not without being asked to copy")

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Hostile:
    """Claims to be an array, and is none."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError("no values")


STRANGERS = [ArrayLike, Interface, OnDevice]
