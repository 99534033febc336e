"""Slicers: the pieces they make, what they join them to, and training with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.integrations.sides import LOSS, Sides, assert_same, mlp, steps

dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8])


def numbered(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count) % 200).reshape(shape).to(dtype)


def cut_and_joined(lib: Any, slicer: Any, value: torch.Tensor) -> Any:
    """Cut a value, and join what would come of the pieces."""
    pieces = [dict(piece) for piece in lib.slicer.slicer.forward_slicers([slicer], {"x": value})]
    results = [{"x": piece["x"] + 1, "y": piece["x"] * 2} for piece in pieces]
    return pieces, dict(lib.slicer.slicer.reverse_slicers([slicer], results, {"x": value}))


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data(), dtypes)
def test_axis_slicer(
    sides: Sides, shape: list[int], data: st.DataObject, dtype: torch.dtype
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))

    def program(lib: Any) -> Any:
        slicer = lib.slicer.AxisSlicer(axis, slice="x", unslice=["x", "y"])
        return cut_and_joined(lib, slicer, numbered(tuple(shape), dtype)), slicer.minibatch_size

    sides.agree(program)


def test_the_only_axis(sides: Sides) -> None:
    """FastEstimator leaves it in the pieces, and has one axis too many when they are joined."""

    def program(lib: Any) -> Any:
        slicer = lib.slicer.AxisSlicer(0, slice="x")
        pieces = slicer.slice_batches((torch.arange(3),))
        joined = slicer._unslice_batch(tuple(piece for (piece,) in pieces), key="x")
        return pieces[1][0].shape, joined.shape

    assert sides.run(program) == (((1,), (3, 1)), ((), (3,)))


@pytest.mark.parametrize("axis", [-4, 3, 9])
def test_an_axis_that_there_is_not(sides: Sides, axis: int) -> None:
    def program(lib: Any) -> Any:
        slicer = lib.slicer.AxisSlicer(axis, slice="x")
        with pytest.raises(IndexError):
            slicer.slice_batches((torch.ones(2, 3, 4),))

    sides.agree(program)


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    """A shape, and the arguments of a slicer that may fit it."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    window = [draw(st.sampled_from([-1, 1, 2, 3, 5])) for _ in shape]
    stride = st.integers(0, 4)
    strides: Any = draw(
        st.one_of(
            st.just(()),
            st.integers(1, 4),
            st.tuples(*[stride if length > 0 else st.just(0) for length in window]).map(list),
        )
    )
    return shape, {
        "window_size": window,
        "strides": strides,
        "pad_mode": draw(st.sampled_from(["drop", "partial", "constant", "nopad", "mirror"])),
        "pad_val": draw(st.sampled_from([0.0, 0, -1.0, 7])),
        "unslice_mode": draw(st.sampled_from(["avg", "sum"])),
        "squeeze_window": draw(st.booleans()),
    }


def fits(shape: list[int], arguments: dict[str, Any]) -> bool:
    """Tell whether "drop" leaves a window along each axis that is cut.

    Where it does not, FastEstimator leaves the axis whole, gives the data back with an axis that it
    never had, or fails.
    """
    strides = arguments["strides"]
    for axis, (size, length) in enumerate(zip(shape, arguments["window_size"], strict=True)):
        stride = strides if isinstance(strides, int) else strides[axis] if strides else length
        if arguments["pad_mode"] == "drop" and length > size > 0 < stride:
            return False
    return True


def attempted(lib: Any, shape: list[int], arguments: dict[str, Any], dtype: torch.dtype) -> Any:
    value = numbered(tuple(shape), dtype)
    try:
        slicer = lib.slicer.SlidingSlicer(**arguments, slice="x", unslice=["x", "y"])
        result = cut_and_joined(lib, slicer, value)
    except (AssertionError, ValueError, IndexError, RuntimeError):
        return None
    return result, slicer.unslice_shape, slicer.minibatch_size


@settings(max_examples=500)
@given(windows(), dtypes)
def test_sliding_slicer(
    sides: Sides, drawn: tuple[list[int], dict[str, Any]], dtype: torch.dtype
) -> None:
    """Wherever FastEstimator's slicer works, fastnet's gives the same to the bit."""
    shape, arguments = drawn
    assume(fits(shape, arguments))
    expected = attempted(sides.fastestimator, shape, arguments, dtype)
    assume(expected is not None)
    assert_same(attempted(sides.fastnet, shape, arguments, dtype), expected)


@given(windows(), dtypes)
def test_sliding_slicer_that_only_joins(
    sides: Sides, drawn: tuple[list[int], dict[str, Any]], dtype: torch.dtype
) -> None:
    shape, arguments = drawn
    assume(fits(shape, arguments))

    def program(lib: Any) -> Any:
        cut = lib.slicer.SlidingSlicer(**arguments, slice="x", unslice=None)
        join = lib.slicer.SlidingSlicer(**arguments, unslice="x", unslice_shape=shape)
        pieces = cut.slice_batches((numbered(tuple(shape), dtype),))
        return pieces, join._unslice_batch(tuple(piece for (piece,) in pieces), key="x")

    try:
        expected = program(sides.fastestimator)
    except (AssertionError, ValueError, IndexError, RuntimeError):
        assume(False)
    assert_same(program(sides.fastnet), expected)


@pytest.mark.parametrize(("strides", "shape"), [(1, (1, 1, 2)), ((), (1, 2))])
def test_a_window_that_does_not_fit(sides: Sides, strides: Any, shape: tuple[int, ...]) -> None:
    """FastEstimator's piece has three axes, of data with two, or is shorter than its window."""

    def pieces(lib: Any) -> Any:
        slicer = lib.slicer.SlidingSlicer([-1, 3], strides=strides, slice="x")
        return slicer.slice_batches((torch.ones(1, 2),))

    ((piece,),) = pieces(sides.fastestimator)
    assert piece.shape == shape
    with pytest.raises(ValueError, match="No window fits"):
        pieces(sides.fastnet)


@pytest.mark.parametrize(
    "arguments",
    [
        {"window_size": []},
        {"window_size": [0]},
        {"window_size": [-2]},
        {"window_size": [1.5]},
        {"window_size": [2, 2], "strides": [1]},
        {"window_size": [2, 2], "strides": [1, -1]},
        {"window_size": [2, 2], "strides": [1, 1.0]},
        {"window_size": [2], "pad_mode": "reflect"},
        {"window_size": [2, 2], "pad_mode": "mirror"},
        {"window_size": [2], "unslice_mode": "mean"},
        {"window_size": [2], "slice": None, "unslice": "x"},
    ],
)
def test_windows_that_are_refused(sides: Sides, arguments: dict[str, Any]) -> None:
    def program(lib: Any) -> Any:
        with pytest.raises(AssertionError):
            lib.slicer.SlidingSlicer(**{"slice": "x", **arguments})

    sides.agree(program)


@pytest.mark.parametrize("pad_mode", ["drop", "partial", "constant", "nopad", "mirror"])
@pytest.mark.parametrize("unslice_mode", ["avg", "sum"])
def test_overlapping_windows_of_an_image(sides: Sides, pad_mode: str, unslice_mode: str) -> None:
    """Through a network: noise is cut, blurred, and joined."""
    image = torch.randn(2, 3, 11, 13, generator=torch.Generator().manual_seed(0))

    def program(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [
                lib.op.tensorop.LambdaOp(
                    lambda x: torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1), "x", "y"
                )
            ],
            slicers=lib.slicer.SlidingSlicer(
                [-1, -1, 4, 5],
                strides=[0, 0, 3, 2],
                pad_mode=pad_mode,
                pad_val=0.5,
                slice="x",
                unslice=["x", "y"],
                unslice_mode=unslice_mode,
            ),
        )
        return steps(network, [{"x": image}], "infer")

    sides.agree(program)


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_mean_unslicer(sides: Sides, rows: list[list[float]]) -> None:
    def program(lib: Any) -> Any:
        slicer = lib.slicer.MeanUnslicer("loss")
        return slicer._unslice_batch(tuple(torch.tensor(row) for row in rows), key="loss")

    sides.agree(program)


@pytest.mark.parametrize(
    "slicers",
    [
        lambda slicer: [slicer.AxisSlicer(0, slice="x"), slicer.AxisSlicer(1, slice="x")],
        lambda slicer: [slicer.MeanUnslicer("y"), slicer.AxisSlicer(0, "x", unslice=["x", "y"])],
        lambda slicer: [slicer.MeanUnslicer("y")],
    ],
)
def test_slicers_that_clash(sides: Sides, slicers: Any) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.TensorOp("x", "y")], slicers=slicers(lib.slicer)
        )
        with pytest.raises(ValueError, match=r".*"):
            network("eval", 1, "")

    sides.agree(program)


def test_slicers_that_disagree(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.TensorOp("x", "y")],
            slicers=[
                lib.slicer.AxisSlicer(0, slice="x", unslice=["x", "y"]),
                lib.slicer.AxisSlicer(1, slice="z"),
            ],
        )
        with network("eval", 1, ""), pytest.raises(ValueError, match=r"2.*3"):
            network.run_step({"x": torch.ones(2, 3), "z": torch.ones(2, 3)})

    sides.agree(program)


def test_keys_that_are_not_unsliced(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.TensorOp("x", "y")], slicers=lib.slicer.AxisSlicer(0, slice="x")
        )
        with pytest.raises(ValueError, match="'y'"):
            network("eval", 1, "")

    sides.agree(program)


def volumes(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "x": torch.randn(4, 6, 5, generator=generator),
            "label": torch.randint(0, 3, (4, 5), generator=generator),
            "name": torch.arange(4),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("merge", [1, 5])
def test_training_on_slices(sides: Sides, merge: int) -> None:
    """A volume is cut along its depth: an update for each slice, or one for all of them."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.loss.CrossEntropy(("y", "label"), "loss", from_logits=True),
                models.UpdateOp(model, "loss", merge_grad=merge),
            ],
            slicers=[
                lib.slicer.AxisSlicer(-1, slice=["x", "label"], unslice=["x", "y"]),
                lib.slicer.MeanUnslicer("loss"),
            ],
            pops=lib.op.numpyop.LambdaOp(lambda y: y.argmax(axis=1), "y", "y"),
        )
        return steps(network, volumes(4)), steps(network, volumes(1), "eval"), model

    sides.agree(program, rtol=LOSS)


def test_training_on_windows(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(lambda: mlp(width=3), "sgd", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.LambdaOp(lambda y: y.square().mean(), "y", "loss"),
                models.UpdateOp(model, "loss"),
            ],
            slicers=[
                lib.slicer.SlidingSlicer(
                    [2, 3, 1], slice="x", unslice="x", squeeze_window=True, strides=[1, 3, 2]
                ),
                lib.slicer.MeanUnslicer(["loss", "y"]),
            ],
        )
        return steps(network, volumes(3)), model

    sides.agree(program)


def test_a_slicer_for_one_mode(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        network = lib.network.TorchNetwork(
            [lib.op.tensorop.LambdaOp(lambda x: x - x.mean(), "x", "y")],
            slicers=lib.slicer.AxisSlicer(
                0, slice="x", unslice=["x", "y"], mode="!eval", ds_id="!whole"
            ),
        )
        return [
            steps(network, volumes(1), mode, ds_id=ds_id)
            for mode in ("train", "eval", "infer")
            for ds_id in ("", "whole", "other")
        ]

    sides.agree(program)


def test_a_slicer_of_ones_own(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        class Halves(lib.slicer.Slicer):  # type: ignore[misc]
            def _slice_batch(self, batch: torch.Tensor) -> list[torch.Tensor]:
                return list(batch.chunk(2))

            def _unslice_batch(self, slices: tuple[torch.Tensor, ...], key: str) -> Any:
                return torch.cat(slices)

        network = lib.network.TorchNetwork(
            [lib.op.tensorop.LambdaOp(lambda x, name: (x + 1, name), ["x", "name"], ["y", "n"])],
            slicers=Halves(slice=["x", "name"], unslice=["y", "n", "never written"]),
        )
        return steps(network, volumes(2), "infer")

    sides.agree(program)


def test_a_slicer_that_does_not_say_how(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        class Nothing(lib.slicer.Slicer):  # type: ignore[misc]
            pass

        for arguments in ({"slice": "x"}, {"slice": None, "unslice": "x"}):
            with pytest.raises(NotImplementedError):
                Nothing(**arguments)
        with pytest.raises(ValueError, match="slice"):
            Nothing(slice=None, unslice=None)

    sides.agree(program)
