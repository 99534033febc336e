"""The protocols of ops, schedulers and slicers."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, get_args

import pytest
import torch

from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp, TensorOp
from fastnet.schedule import EpochScheduler, RepeatScheduler, Scheduler
from fastnet.slicer import AxisSlicer, MeanUnslicer
from fastnet.types import (
    Keys,
    Names,
    NumpyOpLike,
    OpLike,
    SchedulerLike,
    SlicerLike,
    is_given,
    is_numpy_op,
    is_op,
    is_scheduler,
    is_slicer,
    is_tensor_op,
    missing_attributes,
)

pytestmark = pytest.mark.fast

OP = {
    "inputs": ["x"],
    "outputs": [],
    "mode": set(),
    "ds_id": set(),
    "in_list": False,
    "out_list": False,
    "forward": lambda data, state: data,
}
SLICER = {
    "slice_inputs": ["x"],
    "unslice_inputs": [],
    "mode": set(),
    "ds_id": set(),
    "slice_batches": lambda batches: [],
    "_unslice_batch": lambda slices, key: None,
}
SCHEDULER = {"get_current_value": lambda epoch: None, "get_all_values": list}


def duck(attributes: dict[str, Any], **more: Any) -> Any:
    return types.SimpleNamespace(**attributes, **more)


def without(attributes: dict[str, Any], name: str) -> Any:
    return duck({key: value for key, value in attributes.items() if key != name})


TENSOR_OPS = [LambdaOp(print), Delete("x"), TensorOp(), duck(OP)]
NUMPY_OPS = [NumpyLambdaOp(print), duck(OP, forward_batch=print)]
SLICERS = [AxisSlicer(axis=0, slice="x"), MeanUnslicer("x"), duck(SLICER)]
SCHEDULERS = [EpochScheduler({}), RepeatScheduler([1, 2]), Scheduler(), duck(SCHEDULER)]
NOTHING = [None, 3, "op", print, {}, [], object(), torch.nn.Linear(1, 1), torch.ones(1)]
CLASSES = [TensorOp, NumpyLambdaOp, EpochScheduler, AxisSlicer]
ALL = [*TENSOR_OPS, *NUMPY_OPS, *SLICERS, *SCHEDULERS, *NOTHING, *CLASSES]


@pytest.mark.parametrize(
    ("fits", "fitting"),
    [
        (is_op, [*TENSOR_OPS, *NUMPY_OPS]),
        (is_tensor_op, TENSOR_OPS),
        (is_numpy_op, NUMPY_OPS),
        (is_slicer, SLICERS),
        (is_scheduler, SCHEDULERS),
    ],
)
def test_kinds_of_objects(fits: Any, fitting: list[Any]) -> None:
    for item in ALL:
        assert fits(item) is any(item is one for one in fitting), item


@pytest.mark.parametrize(
    ("fits", "protocol", "attributes"),
    [
        (is_op, OpLike, OP),
        (is_numpy_op, NumpyOpLike, {**OP, "forward_batch": print}),
        (is_slicer, SlicerLike, SLICER),
        (is_scheduler, SchedulerLike, SCHEDULER),
    ],
)
def test_every_attribute_is_needed(fits: Any, protocol: Any, attributes: dict[str, Any]) -> None:
    assert isinstance(duck(attributes), protocol)
    for name in attributes:
        item = without(attributes, name)
        assert not fits(item), name
        assert not isinstance(item, protocol), name


def test_an_op_of_both_kinds() -> None:
    """Some ops of FastEstimator are tensor ops and numpy ops."""
    both = duck(OP, forward_batch=print, get_fe_models=set)
    assert is_tensor_op(both)
    assert is_numpy_op(both)


def test_a_scheduler_needs_methods() -> None:
    assert not is_scheduler(duck({**SCHEDULER, "get_all_values": 3}))


@pytest.mark.parametrize(
    ("item", "given"), [(None, False), (False, False), (0, True), ("", True), ([], True), (3, True)]
)
def test_is_given(item: Any, given: bool) -> None:
    assert is_given(item) is given


def test_missing_attributes() -> None:
    assert missing_attributes(duck(OP), tuple(OP)) == []
    assert missing_attributes(without(OP, "mode"), ("inputs", "mode", "other")) == ["mode", "other"]


def test_keys_are_strings_and_names_may_be_left_out() -> None:
    assert get_args(Keys) == (str, Iterable[str])
    assert get_args(Names) == (str, Iterable[str], type(None))
