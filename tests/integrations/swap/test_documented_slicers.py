"""What FastEstimator's documentation says of its slicers, as it is and swapped."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = pytest.mark.tf

from tests.integrations.swap.running import run

Fe = Any
VOLUME = np.arange(24, dtype="float32").reshape(2, 3, 4)


def seen_by(fe: Fe, framework: str, slicers: Any, **batch: Any) -> tuple[list[Any], dict[str, Any]]:
    """Add one in a network that is sliced; return the shapes that the op has seen, and the result.

    In TensorFlow a step is traced, perhaps for all lengths of an axis: they are 0 then.
    """
    shapes: list[Any] = []

    class AddOne(fe.op.tensorop.TensorOp):  # type: ignore[misc, name-defined]
        def forward(self, data: Any, state: dict[str, Any]) -> Any:
            shapes.append(tuple(length or 0 for length in data.shape))
            return data + 1

    op = AddOne(inputs="x", outputs="y")
    return shapes, run(fe, framework, op, batch, slicers=slicers)


def test_axis_slicer_cuts_along_the_axis_and_removes_it(fe: Fe, framework: str) -> None:
    slicer = fe.slicer.AxisSlicer(axis=-1, slice="x", unslice="y")
    shapes, result = seen_by(fe, framework, slicer, x=VOLUME)
    assert fit(shapes, (2, 3))
    np.testing.assert_array_equal(result["y"], VOLUME + 1)


def test_axis_slicer_needs_an_integer(fe: Fe) -> None:
    with pytest.raises(AssertionError):
        fe.slicer.AxisSlicer(axis=1.5, slice="x")


def test_what_is_not_sliced_is_replicated(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.LambdaOp(fn=lambda x, z: x + z, inputs=("x", "z"), outputs="y")
    slicer = fe.slicer.AxisSlicer(axis=1, slice="x", unslice="y")
    z = np.float32([[10], [20]])
    result = run(fe, framework, op, {"x": VOLUME, "z": z}, slicers=slicer)
    np.testing.assert_array_equal(result["y"], VOLUME + z[:, None])
    np.testing.assert_array_equal(result["z"], z)


def test_by_default_the_sliced_keys_are_unsliced(fe: Fe) -> None:
    assert fe.slicer.AxisSlicer(axis=1, slice=["x", "z"]).unslice_inputs == ["x", "z"]


def test_none_unslices_nothing(fe: Fe) -> None:
    slicer = fe.slicer.AxisSlicer(axis=1, slice="x", unslice=None)
    assert (slicer.slice_inputs, slicer.unslice_inputs) == (["x"], [])


def test_a_slicer_needs_some_key(fe: Fe) -> None:
    with pytest.raises(ValueError, match="slice"):
        fe.slicer.AxisSlicer(axis=1)


def test_a_slicer_must_be_able_to_slice_what_it_is_given(fe: Fe) -> None:
    class Neither(fe.slicer.Slicer):  # type: ignore[misc, name-defined]
        pass

    with pytest.raises(NotImplementedError):
        Neither(slice="x", unslice=None)
    with pytest.raises(NotImplementedError):
        Neither(unslice="x")


def fit(shapes: list[Any], *expected: tuple[int, ...]) -> bool:
    """Return whether shapes are some that are expected, lengths that are open aside."""
    return bool(shapes) and all(
        any(
            len(shape) == len(one) and all(a in (0, b) for a, b in zip(shape, one, strict=True))
            for one in expected
        )
        for shape in shapes
    )


@pytest.mark.parametrize(
    ("wanted", "mode", "ds_id", "cut"),
    [
        ("infer", "infer", "", True),
        ("train", "infer", "", False),
        ("!infer", "infer", "", False),
        ("!train", "infer", "", True),
    ],
)
def test_modes_of_slicers(fe: Fe, wanted: str, mode: str, ds_id: str, cut: bool) -> None:
    slicer = fe.slicer.AxisSlicer(axis=1, slice="x", unslice="y", mode=wanted)
    shapes, result = seen_by(fe, "torch", slicer, x=VOLUME)
    assert fit(shapes, (2, 4) if cut else (2, 3, 4))
    np.testing.assert_array_equal(result["y"], VOLUME + 1)


@pytest.mark.parametrize(("wanted", "ds_id", "cut"), [("a", "a", 1), ("a", "b", 0), ("!a", "b", 1)])
def test_datasets_of_slicers(fe: Fe, wanted: str, ds_id: str, cut: bool) -> None:
    slicer = fe.slicer.AxisSlicer(axis=1, slice="x", unslice="y", ds_id=wanted)
    ranks: list[int] = []

    def rank(x: Any) -> Any:
        ranks.append(x.ndim)
        return x

    op = fe.op.tensorop.LambdaOp(fn=rank, inputs="x", outputs="y")
    run(fe, "torch", op, {"x": VOLUME}, slicers=slicer, ds_id=ds_id)
    assert set(ranks) == {2 if cut else 3}


def test_a_programs_own_slicer(fe: Fe, framework: str) -> None:
    class Halves(fe.slicer.Slicer):  # type: ignore[misc, name-defined]
        def _slice_batch(self, batch: Any) -> list[Any]:
            return [batch[:1], batch[1:]]

        def _unslice_batch(self, slices: Any, key: str) -> Any:
            return fe.backend.concat(list(slices), axis=0)

    slicer = Halves(slice="x", unslice="y")
    shapes, result = seen_by(fe, framework, slicer, x=VOLUME)
    assert fit(shapes, (1, 3, 4))
    np.testing.assert_array_equal(result["y"], VOLUME + 1)
    assert slicer.minibatch_size == 2


def test_slicers_of_inconsistent_numbers(fe: Fe) -> None:
    slicer = fe.slicer.AxisSlicer(axis=1, slice=["x", "z"], unslice="y")
    with pytest.raises(AssertionError, match="number"):
        seen_by(fe, "torch", slicer, x=VOLUME, z=VOLUME[:, :2])


@pytest.mark.parametrize("key", ["slice", "unslice"])
def test_two_slicers_of_one_key(fe: Fe, key: str) -> None:
    keys = {"slice": None, "unslice": None, key: "x"}
    slicers = [fe.slicer.AxisSlicer(axis=1, **keys), fe.slicer.AxisSlicer(axis=1, **keys)]
    check = sys.modules["fastestimator.slicer.slicer"].sanity_assert_slicers
    with pytest.raises(ValueError, match="x"):
        check(slicers)


def test_mean_unslicer_averages(fe: Fe, framework: str) -> None:
    def and_its_mean(x: Any) -> Any:
        return x, fe.backend.reduce_mean(x)

    op = fe.op.tensorop.LambdaOp(fn=and_its_mean, inputs="x", outputs=("y", "mean"))
    slicers = [
        fe.slicer.AxisSlicer(axis=1, slice="x", unslice="y"),
        fe.slicer.MeanUnslicer(unslice="mean"),
    ]
    result = run(fe, framework, op, {"x": VOLUME}, slicers=slicers)
    np.testing.assert_allclose(result["mean"], VOLUME.mean())


IMAGE = np.arange(2 * 1 * 5 * 4, dtype="float32").reshape(2, 1, 5, 4)


def test_sliding_slicer_without_overlap(fe: Fe, framework: str) -> None:
    """With no strides they are the window's size, and -1 takes the size of the input."""
    slicer = fe.slicer.SlidingSlicer(window_size=[-1, -1, 5, 2], slice="x", unslice="y")
    assert list(slicer.strides) == [0, 0, 5, 2]
    shapes, result = seen_by(fe, framework, slicer, x=IMAGE)
    assert fit(shapes, (2, 1, 5, 2))
    np.testing.assert_array_equal(result["y"], IMAGE + 1)


def test_an_integer_as_strides(fe: Fe) -> None:
    """It is used for each axis along which the window slides."""
    slicer = fe.slicer.SlidingSlicer(window_size=[-1, 2, 2], strides=1, slice="x")
    assert list(slicer.strides) == [0, 1, 1]


def test_drop_leaves_out_the_last_slice(fe: Fe, framework: str) -> None:
    """What no slice covers becomes pad_val."""
    slicer = fe.slicer.SlidingSlicer(
        window_size=[-1, -1, 2, 4], pad_mode="drop", pad_val=-7.0, slice="x", unslice="y"
    )
    shapes, result = seen_by(fe, framework, slicer, x=IMAGE)
    assert fit(shapes, (2, 1, 2, 4))
    expected = IMAGE + 1
    expected[:, :, 4:] = -7
    np.testing.assert_array_equal(result["y"], expected)


def test_partial_has_a_smaller_last_slice(fe: Fe, framework: str) -> None:
    slicer = fe.slicer.SlidingSlicer(
        window_size=[-1, -1, 2, 4], pad_mode="partial", slice="x", unslice="y"
    )
    shapes, result = seen_by(fe, framework, slicer, x=IMAGE)
    assert fit(shapes, (2, 1, 2, 4), (2, 1, 1, 4))
    np.testing.assert_array_equal(result["y"], IMAGE + 1)


def test_constant_fills_the_last_slice(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.LambdaOp(fn=lambda x: x * 1, inputs="x", outputs="y")
    largest = fe.op.tensorop.LambdaOp(fn=fe.backend.reduce_max, inputs="x", outputs="top")
    slicers = [
        fe.slicer.SlidingSlicer(
            window_size=[-1, -1, 2, 4],
            pad_mode="constant",
            pad_val=99.0,
            slice="x",
            unslice="y",
        ),
        fe.slicer.MeanUnslicer(unslice="top"),
    ]
    result = run(fe, framework, [op, largest], {"x": IMAGE}, slicers=slicers)
    np.testing.assert_array_equal(result["y"], IMAGE)
    # the third slice is padded with 99; the others' largest values are of the second image
    np.testing.assert_allclose(result["top"], (27 + 35 + 99) / 3, rtol=1e-6)


@pytest.mark.parametrize("how", ["avg", "sum"])
def test_where_slices_overlap(fe: Fe, framework: str, how: str) -> None:
    slicer = fe.slicer.SlidingSlicer(
        window_size=[-1, 3], strides=[0, 1], slice="x", unslice="y", unslice_mode=how
    )
    x = np.float32([[1, 2, 3, 4]])
    _, result = seen_by(fe, framework, slicer, x=x)
    counts = np.float32([1, 2, 2, 1]) if how == "sum" else 1
    np.testing.assert_array_equal(result["y"], (x + 1) * counts)


def test_strides_beyond_the_window_drop_data(fe: Fe, framework: str) -> None:
    slicer = fe.slicer.SlidingSlicer(
        window_size=[-1, 1], strides=[0, 2], pad_val=-1, slice="x", unslice="y"
    )
    _, result = seen_by(fe, framework, slicer, x=[[1, 2, 3, 4]])
    np.testing.assert_array_equal(result["y"], [[2, -1, 4, -1]])


def test_squeeze_window_removes_axes_of_one(fe: Fe, framework: str) -> None:
    slicer = fe.slicer.SlidingSlicer(
        window_size=[-1, 1, -1], squeeze_window=True, slice="x", unslice="y"
    )
    shapes, result = seen_by(fe, framework, slicer, x=VOLUME)
    assert fit(shapes, (2, 4))
    np.testing.assert_array_equal(result["y"], VOLUME + 1)


def test_unslice_shape_is_needed_without_slices(fe: Fe) -> None:
    with pytest.raises(AssertionError):
        fe.slicer.SlidingSlicer(window_size=[-1, 2], unslice="y")


def test_unslice_shape(fe: Fe, framework: str) -> None:
    """One slicer cuts, and another puts together, to a shape that it is told."""
    slicers = [
        fe.slicer.SlidingSlicer(window_size=[-1, 2], slice="x", unslice=None),
        fe.slicer.SlidingSlicer(window_size=[-1, 2], unslice="y", unslice_shape=(1, 4)),
    ]
    _, result = seen_by(fe, framework, slicers, x=[[1, 2, 3, 4]])
    np.testing.assert_array_equal(result["y"], [[2, 3, 4, 5]])


@pytest.mark.parametrize(
    "settings",
    [
        {"window_size": []},
        {"window_size": [0, 2]},
        {"window_size": [1.5]},
        {"window_size": [-1, 2], "strides": [1]},
        {"window_size": [-1, 2], "strides": [0, -1]},
        {"window_size": [-1, 2], "pad_mode": "mean"},
        {"window_size": [-1, 2], "unslice_mode": "max"},
    ],
    ids=str,
)
def test_settings_that_are_refused(fe: Fe, settings: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        fe.slicer.SlidingSlicer(slice="x", **settings)


def test_a_window_of_another_rank(fe: Fe) -> None:
    slicer = fe.slicer.SlidingSlicer(window_size=[-1, 2], slice="x", unslice="y")
    with pytest.raises(ValueError, match=r"\[-1, 2\].*\[2, 3, 4\]"):
        seen_by(fe, "torch", slicer, x=VOLUME)
