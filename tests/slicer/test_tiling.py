"""Where windows lie, against windows laid one by one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fastnet.slicer.tiling import tile

PAD_MODES = ["drop", "partial", "constant", "nopad", "mirror"]


def lay(size: int, length: int, stride: int, pad_mode: str) -> list[tuple[int, int]]:
    """Lay windows along one axis until one has reached the end, as (start, stop)."""
    windows = []
    start = 0
    while start < size:
        stop = start + length
        if stop <= size or pad_mode in ("constant", "mirror"):
            windows.append((start, stop))
        elif pad_mode == "partial":
            windows.append((start, size))
        elif pad_mode == "nopad":
            windows.append((size - length, size))
        if stop >= size:
            return windows
        start += stride
    return windows


class TestOneAxis:
    @given(
        st.integers(2, 12), st.integers(1, 8), st.integers(1, 11), st.sampled_from(PAD_MODES[:4])
    )
    def test_model(self, size: int, length: int, stride: int, pad_mode: str) -> None:
        assume(stride < size)
        assume(pad_mode != "nopad" or length <= size)
        windows = lay(size, length, stride, pad_mode)
        assume(windows)
        tiling = tile((size,), (length,), (stride,), pad_mode)
        assert tiling.cuts == tuple((slice(*window),) for window in windows)
        reached = max(size, *(stop for _, stop in windows)) if len(windows) > 1 else windows[0][1]
        assert tiling.padding == (max(reached - size, 0),)
        counts = [sum(a <= i < b for a, b in windows) for i in range(size)]
        assert tiling.coverage == (None if set(counts) == {1} else tuple(counts),)

    @pytest.mark.parametrize(
        ("length", "stride"), [(-1, 0), (-1, 2), (2, 0), (5, 0), (4, 4), (2, 4), (2, 9)]
    )
    @pytest.mark.parametrize("pad_mode", ["drop", "partial", "nopad"])
    def test_axes_that_are_left_whole(self, length: int, stride: int, pad_mode: str) -> None:
        tiling = tile((4,), (length,), (stride,), pad_mode)
        assert tiling.cuts == ((slice(None),),)
        assert tiling.padding == (0,)
        assert tiling.coverage == (None,)

    def test_a_whole_axis_is_padded_to_its_window(self) -> None:
        tiling = tile((4,), (6,), (6,), "constant")
        assert (tiling.cuts, tiling.padding) == (((slice(None),),), (2,))

    @pytest.mark.parametrize("pad_mode", ["partial", "nopad"])
    def test_a_window_longer_than_its_axis(self, pad_mode: str) -> None:
        assert tile((4,), (5,), (4,), pad_mode).cuts == ((slice(None),),)

    @pytest.mark.parametrize("pad_mode", PAD_MODES)
    def test_an_axis_of_length_0(self, pad_mode: str) -> None:
        assert tile((0,), (2,), (2,), pad_mode).cuts == ((slice(None),),)


class TestSeveralAxes:
    @given(st.lists(st.tuples(st.integers(2, 6), st.integers(1, 3)), min_size=1, max_size=3))
    def test_the_last_axis_moves_fastest(self, axes: list[tuple[int, int]]) -> None:
        shape = tuple(size for size, _ in axes)
        window = tuple(min(length, size - 1) for size, length in axes)
        expected = product(*(lay(s, w, w, "partial") for s, w in zip(shape, window, strict=True)))
        cuts = tile(shape, window, window, "partial").cuts
        assert [tuple((cut.start, cut.stop) for cut in row) for row in cuts] == list(expected)

    def test_mirror_leaves_batch_and_channel(self) -> None:
        tiling = tile((3, 3, 3), (2, 2, 2), (2, 2, 2), "mirror")
        assert tiling.padding == (0, 0, 1)
        assert tile((3, 3, 3), (2, 2, 2), (2, 2, 2), "constant").padding == (1, 1, 1)


class TestErrors:
    @pytest.mark.parametrize("stride", [1, 3, 4, 5, 9])
    def test_no_window_fits(self, stride: int) -> None:
        with pytest.raises(ValueError, match="No window fits") as caught:
            tile((2, 4), (-1, 5), (0, stride), "drop")
        assert str(caught.value) == (
            "No window fits: axis 1 of data of shape [2, 4] is shorter than its window, in the "
            "window size [-1, 5], and pad_mode 'drop' drops what does not fill a window. Use "
            "another pad_mode, or a smaller window."
        )

    def test_too_short_for_nopad(self) -> None:
        with pytest.raises(AssertionError) as caught:
            tile((2, 4), (-1, 5), (0, 3), "nopad")
        assert str(caught.value) == (
            "With pad_mode 'nopad' the data must be at least as long as the window, but an axis of "
            "length 4 is to be cut into windows of length 5. Use another pad_mode, or a smaller "
            "window."
        )

    def test_too_short_to_be_mirrored(self) -> None:
        with pytest.raises(ValueError, match="mirrored") as caught:
            tile((1, 1, 3), (-1, -1, 6), (0, 0, 2), "mirror")
        assert str(caught.value) == (
            "Axis 2 of data of shape [1, 1, 3] is too short to be mirrored: the window size "
            "[-1, -1, 6] needs 3 more positions, and mirroring gives at most 2. Use another "
            "pad_mode, or a smaller window."
        )
