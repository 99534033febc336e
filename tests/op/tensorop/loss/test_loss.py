"""What all losses share."""

from __future__ import annotations

import pytest

from fastnet.op.tensorop import TensorOp
from fastnet.op.tensorop.loss import CrossEntropy, LossOp, MeanSquaredError


@pytest.mark.parametrize("cls", [LossOp, CrossEntropy, MeanSquaredError])
class TestEach:
    def test_keys(self, cls: type[LossOp]) -> None:
        op = cls(inputs=("y_pred", "y"), outputs="loss")
        assert isinstance(op, TensorOp)
        assert (op.pred_key, op.true_key) == ("y_pred", "y")
        assert (op.pred_key_idx, op.true_key_idx) == (0, 1)
        assert (op.in_list, op.out_list) == (True, False)


def test_one_with_its_keys_the_other_way_round() -> None:
    class Turned(LossOp):
        @property
        def true_key_idx(self) -> int:
            return 0

        @property
        def pred_key_idx(self) -> int:
            return 1

    op = Turned(inputs=["y", "y_pred"], outputs="loss")
    assert (op.pred_key, op.true_key) == ("y_pred", "y")
