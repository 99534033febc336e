"""Losses and their gradients, in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.integrations.sides import LOSS, Sides

WEIGHTS = {0: 2.0, 2: 0.25}


def predictions(*shape: int, logits: bool, classes: int | None = 1) -> torch.Tensor:
    raw = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    if logits:
        return raw
    return raw.sigmoid() if classes is None else raw.softmax(dim=classes)


def labels(*shape: int, classes: int = 3) -> torch.Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(2))


def loss_and_gradient(
    lib: Any, op: Any, y: torch.Tensor, truth: torch.Tensor, mode: str = "train"
) -> Any:
    """Run a loss in a network, as it stands there, and differentiate it."""
    kept: list[Any] = []
    y = y.clone().requires_grad_()

    def keep(loss: torch.Tensor) -> None:
        kept.extend([loss, *torch.autograd.grad(loss.sum(), y)])

    class Keep(lib.op.tensorop.TensorOp):  # type: ignore[misc]
        def forward(self, data: Any, state: Any) -> Any:
            keep(data)

        def fe_retain_graph(self, retain: bool | None = None) -> bool:
            return False  # so that gradients are taken down

    network = lib.network.TorchNetwork([op, Keep("loss")])
    with network(mode, 1, ""):
        result = network.run_step({"y": y, "truth": truth})["loss"]
    return result, kept


@pytest.mark.parametrize("class_weights", [None, {}, WEIGHTS])
@pytest.mark.parametrize("average_loss", [True, False])
@pytest.mark.parametrize("from_logits", [True, False])
class TestCrossEntropy:
    @pytest.fixture
    def check(
        self, sides: Sides, from_logits: bool, average_loss: bool, class_weights: Any
    ) -> Callable[..., None]:
        """Return what compares a loss of the settings that all of these tests go through."""
        through = {
            "from_logits": from_logits,
            "average_loss": average_loss,
            "class_weights": class_weights,
        }

        def check(y: torch.Tensor, truth: torch.Tensor, rtol: float = 0.0, **more: Any) -> None:
            def program(lib: Any) -> Any:
                make = lib.op.tensorop.loss.CrossEntropy
                op = make(("y", "truth"), "loss", **through, **more)
                return loss_and_gradient(lib, op, y, truth)

            sides.agree(program, rtol)

        return check

    @pytest.mark.parametrize("form", [None, "binary"])
    @pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 1, 2, 2)])
    @pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
    def test_binary(
        self,
        check: Callable[..., None],
        form: Any,
        shape: Any,
        dtype: Any,
        from_logits: bool,
    ) -> None:
        check(
            predictions(*shape, logits=from_logits, classes=None),
            labels(*shape, classes=2).to(dtype),
            form=form,
        )

    @pytest.mark.parametrize("form", [None, "binary"])
    def test_binary_whose_truth_lacks_an_axis(
        self,
        check: Callable[..., None],
        form: Any,
        from_logits: bool,
    ) -> None:
        check(
            predictions(7, 1, logits=from_logits, classes=None),
            labels(7, classes=2),
            form=form,
        )

    @pytest.mark.parametrize("form", [None, "categorical"])
    @pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
    def test_categorical(
        self,
        check: Callable[..., None],
        form: Any,
        dtype: Any,
        from_logits: bool,
    ) -> None:
        check(
            predictions(7, 3, logits=from_logits),
            torch.nn.functional.one_hot(labels(7), 3).to(dtype),
            form=form,
        )

    def test_categorical_of_images(self, check: Callable[..., None], from_logits: bool) -> None:
        truth = torch.nn.functional.one_hot(labels(4, 2, 2), 3).permute(0, 3, 1, 2)
        check(
            predictions(4, 3, 2, 2, logits=from_logits),
            truth,
            form="categorical",
        )

    @pytest.mark.parametrize("form", [None, "sparse"])
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
    def test_sparse(
        self,
        check: Callable[..., None],
        form: Any,
        dtype: Any,
        from_logits: bool,
    ) -> None:
        check(
            predictions(7, 3, logits=from_logits),
            labels(7).to(dtype),
            rtol=LOSS,
            form=form,
        )

    @pytest.mark.parametrize("shape", [(4, 5), (4, 2, 2)])
    def test_sparse_of_sequences_and_images(
        self,
        check: Callable[..., None],
        shape: Any,
        from_logits: bool,
    ) -> None:
        check(
            predictions(shape[0], 3, *shape[1:], logits=from_logits),
            labels(*shape),
            rtol=LOSS,
            form="sparse",
        )

    @pytest.mark.parametrize("passed_over", [[2], [0, 5], list(range(7))])
    def test_sparse_with_targets_of_minus_100(
        self,
        check: Callable[..., None],
        passed_over: Any,
        from_logits: bool,
    ) -> None:
        """Their loss is 0, and they count in FastEstimator's mean."""
        truth = labels(7)
        truth[passed_over] = -100
        check(
            predictions(7, 3, logits=from_logits),
            truth,
            rtol=LOSS,
        )


@pytest.mark.parametrize("average_loss", [True, False])
@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3), (4, 3, 2)])
def test_mean_squared_error(sides: Sides, average_loss: bool, shape: Any) -> None:
    y, truth = predictions(*shape, logits=True), predictions(*shape, logits=True) * 0.5

    def program(lib: Any) -> Any:
        op = lib.op.tensorop.loss.MeanSquaredError(
            ("y", "truth"), "loss", average_loss=average_loss
        )
        return loss_and_gradient(lib, op, y, truth)

    sides.agree(program, rtol=LOSS)


@pytest.mark.parametrize("name", ["CrossEntropy", "MeanSquaredError"])
def test_what_a_loss_says_of_itself(sides: Sides, name: str) -> None:
    def program(lib: Any) -> Any:
        op = getattr(lib.op.tensorop.loss, name)(("y", "truth"), "loss")
        return {
            "mode": set(op.mode),
            "inputs": list(op.inputs),
            "outputs": list(op.outputs),
            "lists": (op.in_list, op.out_list),
            "average": op.average_loss,
            "keys": (op.true_key, op.pred_key, op.true_key_idx, op.pred_key_idx),
        }

    sides.agree(program)


@pytest.mark.parametrize(
    "class_weights", [[(0, 2.0)], {"a": 2.0}, {0: 2}, {0.0: 2.0}, {0: "2"}, {0: 1.0, 1: None}]
)
def test_class_weights_that_are_refused(sides: Sides, class_weights: Any) -> None:
    def program(lib: Any) -> Any:
        with pytest.raises(AssertionError):
            lib.op.tensorop.loss.CrossEntropy(("y", "truth"), "loss", class_weights=class_weights)

    sides.agree(program)
