"""Utilities for tensors, devices, collections and names."""

from contextlib import nullcontext

from fastnet.util.collections import filter_nones, to_list, to_set
from fastnet.util.devices import get_device, get_num_devices, get_num_gpus
from fastnet.util.names import check_ds_id, check_io_names, parse_modes
from fastnet.util.padding import pad_batch, pad_data
from fastnet.util.tensors import (
    detach_tensors,
    get_batch_size,
    move_tensors_to_device,
    to_number,
)

__all__ = [
    "NonContext",
    "check_ds_id",
    "check_io_names",
    "detach_tensors",
    "filter_nones",
    "get_batch_size",
    "get_device",
    "get_num_devices",
    "get_num_gpus",
    "move_tensors_to_device",
    "pad_batch",
    "pad_data",
    "parse_modes",
    "to_list",
    "to_number",
    "to_set",
]


class NonContext(nullcontext[None]):
    """A context manager that does nothing.

    >>> with NonContext():
    ...     answer = 42
    >>> answer
    42
    """

    def __init__(self) -> None:
        super().__init__()
