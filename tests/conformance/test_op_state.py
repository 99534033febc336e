"""What ops remember from step to step, saved and given to others like them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import L1_Loss, LossOp, SuperLoss
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.agreement import assert_same
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import make_batches

BATCHES = make_batches(8)


class Squares(LossOp):
    def forward(self, data: Any, state: Any) -> Any:
        predicted, true = data
        return (predicted - true) ** 2


class Program:
    """A loss that follows an average, and an update that merges."""

    def __init__(self, fw: Framework, layers: Any = None) -> None:
        self.fw = fw
        self.model = fw.build(layers or make_layers(3, 2), fw.sgd(0.1), name="m")
        self.loss = SuperLoss(Squares(("y", "t"), "each"))
        self.update = UpdateOp(self.model, "loss", merge_grad=3)
        mean = LambdaOp(fw.mean, "each", "loss")
        self.network = fw.network([ModelOp(self.model, "x", "y"), self.loss, mean, self.update])

    def run(self, batches: Any) -> list[float]:
        results = self.fw.steps(self.network, batches, "train")
        return [float(result["loss"]) for result in results]


def merged_gradients(program: Program) -> list[Any]:
    """Copy the sums of a program's gradients from whatever device they are on."""
    found = program.update.state_dict()["gradients"]
    return [one.cpu().numpy() if hasattr(one, "cpu") else np.asarray(one) for one in found]


@pytest.mark.parametrize("before", [1, 3])
def test_training_goes_on_where_it_stopped(fw: Framework, before: int) -> None:
    whole, first = Program(fw), Program(fw)
    losses = whole.run(BATCHES)
    early = first.run(BATCHES[:before])
    state = first.update.state_dict()
    assert state["merged"] == before % 3
    kernel, bias = fw.weights(first.model)
    second = Program(fw, [(kernel, bias)])
    second.update.load_state_dict(state)
    second.loss.load_state_dict(first.loss.state_dict())
    np.testing.assert_allclose(early + second.run(BATCHES[before:]), losses, rtol=1e-6)
    assert_same(fw.weights(second.model), fw.weights(whole.model))


def test_without_merged_steps_other_parameters_may_have_been_trainable(fw: Framework) -> None:
    losses = Program(fw).run(BATCHES)
    program = Program(fw)
    program.update.load_state_dict({"merged": 0, "gradients": [None]})
    np.testing.assert_allclose(program.run(BATCHES), losses, rtol=1e-6)


def test_a_super_loss_follows_the_average_of_each_mode(fw: Framework) -> None:
    network = fw.network(
        [SuperLoss(L1_Loss(("p", "t"), "loss", mode=None), output_confidence="confidence")]
    )
    ones = np.ones((2, 1), "float32")
    batches = [{"p": ones * np.float32(size), "t": ones * 0} for size in (1, 1, 11)]
    # The first batch of a warmup is forgotten.
    fw.step(network, batches[2], "train", warmup=True)
    first, second, third = fw.steps(network, batches, "train")
    # no excess over the average: full confidence, nothing lost
    np.testing.assert_allclose(first["loss"], 0, atol=1e-6)
    np.testing.assert_allclose(second["confidence"], 1)
    # an average of 2: the excess is 9, and W(4.5) exp(W(4.5)) = 4.5
    confidence = third["confidence"].astype("float64")
    logs = np.log(confidence)
    assert (confidence < 0.5).all()
    np.testing.assert_allclose(third["loss"], (9 * confidence + logs**2).mean(), rtol=1e-5)
    np.testing.assert_allclose(-logs * np.exp(-logs), 4.5, rtol=1e-5)
    # Evaluation starts from its own first batch.
    np.testing.assert_allclose(fw.step(network, batches[2], "eval")["confidence"], 1)


BAD_STATES: list[tuple[Any, str]] = [
    (lambda one: 3, "is not an UpdateOp's: it has no 'merged' and 'gradients'"),
    (lambda one: {"merged": 1}, "is not an UpdateOp's: it has no 'merged' and 'gradients'"),
    (lambda one: {"merged": -1, "gradients": one}, "has -1 merged steps"),
    (lambda one: {"merged": "1", "gradients": one}, "has '1' merged steps"),
    (
        lambda one: {"merged": 1, "gradients": one, "model_name": "other"},
        "has merged gradients of the model 'other', but the op updates 'm'",
    ),
    (lambda one: {"merged": 1, "gradients": one[:1]}, "has 1 gradients, but the model 'm' has"),
    (lambda one: {"merged": 1, "gradients": one[:1] * 2}, "has gradient 1 of the shape"),
    (
        lambda one: {"merged": 1, "gradients": [one[0], one[1].astype("complex64")]},
        "has gradient 1 of the shape",
    ),
    (lambda one: {"merged": 1, "gradients": ["one", None]}, "has gradient 0 of"),
]


def test_a_bad_state_changes_nothing(fw: Framework) -> None:
    program = Program(fw)
    program.run(BATCHES[:2])
    before = merged_gradients(program)
    for make, text in BAD_STATES:
        with pytest.raises(ValueError, match=re.escape(f"The state to load {text}")):
            program.update.load_state_dict(make(before))
        after = program.update.state_dict()
        assert after["merged"] == 2
        assert all(map(np.array_equal, merged_gradients(program), before))


def test_merged_gradients_for_an_op_that_does_not_merge(fw: Framework) -> None:
    program = Program(fw)
    program.run(BATCHES[:2])
    with pytest.raises(
        ValueError, match=r"gradients of 2 steps, .* does not merge: .*merge_grad=1"
    ):
        UpdateOp(program.model, "loss").load_state_dict(program.update.state_dict())


def test_a_bad_state_of_a_super_loss_changes_nothing(fw: Framework) -> None:
    program = Program(fw)
    program.run(BATCHES[:2])
    before = program.loss.state_dict()
    states: list[Any] = [3, {}, {"averages": {"train": "much", "eval": None}}]
    for state in states:
        with pytest.raises(ValueError, match=r"SuperLoss.*averages"):
            program.loss.load_state_dict(state)
        assert program.loss.state_dict() == before


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_an_average_goes_on_in_its_own_type(fw: Framework, dtype: str) -> None:
    ops = [SuperLoss(Squares(("y", "t"), "loss")) for _ in range(2)]
    networks = [fw.network([op]) for op in ops]
    source = np.random.default_rng(0)

    def run(network: Any, value: Any) -> Any:
        given = fw.cast(fw.tensor(value), dtype)
        with fw.opened(network, "train"):
            loss = network.run_step({"y": given, "t": given * 0})["loss"]
        assert str(getattr(loss.dtype, "name", loss.dtype)).removeprefix("torch.") == dtype
        return fw.array(fw.cast(loss, "float64"))

    values = source.random((6, 3, 1))
    for value in values[:3]:
        run(networks[0], value)
    ops[1].load_state_dict(ops[0].state_dict())
    for value in values[3:]:
        assert run(networks[0], value) == run(networks[1], value)
