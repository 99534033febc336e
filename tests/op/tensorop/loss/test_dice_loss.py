"""DiceLoss, beyond what the conformance tests compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.tensorop.loss import DiceLoss

FRAMEWORKS = pytest.mark.parametrize("way", ["torch", pytest.param("tf", marks=pytest.mark.tf)])


def masks(way: str, channels: int) -> Any:
    shape = (2, channels, 4, 4) if way == "torch" else (2, 4, 4, channels)
    values = np.random.default_rng(0).random((2, *shape), "float32")
    if way == "torch":
        return list(pytest.importorskip("torch").from_numpy(values))
    tf = pytest.importorskip("tensorflow")
    return [tf.constant(value) for value in values]


@FRAMEWORKS
@pytest.mark.parametrize(("channels", "channel"), [(1, 1), (1, 4), (2, 2), (3, 7)])
@pytest.mark.parametrize("average", [False, True])
def test_weight_of_missing_channel_is_refused(
    way: str, channels: int, channel: int, average: bool
) -> None:
    op = DiceLoss(
        ("p", "t"),
        "loss",
        average_loss=average,
        channel_average=average,
        channel_weights={channel: 3.0},
    )
    op.build(way)
    with pytest.raises(ValueError, match=f"the channel {channel}, but .* 0 to {channels - 1}"):
        op.forward(masks(way, channels), {})


@FRAMEWORKS
def test_weight_of_last_channel_is_applied(way: str) -> None:
    data = masks(way, 2)
    settings: Any = {"average_loss": False, "channel_average": False}
    plain, weighted = (
        DiceLoss(("p", "t"), "loss", channel_weights=weights, **settings)
        for weights in (None, {1: 3.0})
    )
    for op in (plain, weighted):
        op.build(way)
    scores, results = np.asarray(plain.forward(data, {})), np.asarray(weighted.forward(data, {}))
    np.testing.assert_allclose(results, scores * [1.0, 3.0], rtol=1e-6)
