"""What ops remember from step to step, saved and given to others like them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fastnet as fe
from fastnet.op.tensorop.loss import LossOp, SuperLoss
from fastnet.op.tensorop.model import ModelOp, UpdateOp


class Squares(LossOp):
    def forward(self, data, state):
        predicted, true = data
        return (predicted - true) ** 2


def make(merge_grad=3, frozen=False):
    torch.manual_seed(0)
    model = fe.build(lambda: torch.nn.Linear(2, 1), "sgd")
    model.bias.requires_grad = not frozen
    update = UpdateOp(model, "loss", merge_grad=merge_grad)
    loss = SuperLoss(Squares(("y", "t"), "loss"))
    network = fe.Network([ModelOp(model, "x", "y"), loss, update])
    return network, model, update, loss


def run(network, steps, first=0):
    generator = torch.Generator().manual_seed(7)
    batches = [
        {
            "x": torch.randn(4, 2, generator=generator),
            "t": torch.randn(4, 1, generator=generator),
        }
        for _ in range(first + steps)
    ]
    with network(mode="train", epoch=1):
        return [network.run_step(batch)["loss"].item() for batch in batches[first:]]


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_training_goes_on_where_it_stopped(before: int) -> None:
    network, expected, _, _ = make()
    losses = run(network, 8)
    first, model, update, loss = make()
    early = run(first, before)
    second, other, other_update, other_loss = make()
    other.load_state_dict(model.state_dict())
    other_update.load_state_dict(update.state_dict())
    other_loss.load_state_dict(loss.state_dict())
    assert early + run(second, 8 - before, first=before) == losses
    torch.testing.assert_close(other.weight, expected.weight, rtol=0, atol=0)


def test_what_is_remembered() -> None:
    network, _, update, loss = make()
    assert update.state_dict() == {"merged": 0, "gradients": [None, None]}
    assert loss.state_dict()["averages"] == dict.fromkeys(("train", "eval", "test", "infer"))
    run(network, 2)
    state = update.state_dict()
    assert state["merged"] == 2
    assert [type(one) for one in state["gradients"]] == [np.ndarray, np.ndarray]
    assert [one.shape for one in state["gradients"]] == [(1, 2), (1,)]
    averages = loss.state_dict()["averages"]
    assert isinstance(averages["train"], float)
    assert averages["eval"] is None
    run(network, 1)
    assert update.state_dict()["merged"] == 0


def test_only_what_is_trained_counts() -> None:
    network, _, update, _ = make(frozen=True)
    run(network, 1)
    assert [one.shape for one in update.state_dict()["gradients"]] == [(1, 2)]


def test_the_state_of_another_model_is_refused() -> None:
    _, model, update, _ = make()
    with pytest.raises(ValueError, match="gradients") as caught:
        update.load_state_dict({"merged": 1, "gradients": [None]})
    assert str(caught.value) == (
        f"The state to load has 1 gradients, but the model '{model.model_name}' has 2 trainable "
        "parameters. Load it into the UpdateOp of the model that it was saved from."
    )


def test_half_precision_is_saved_in_single() -> None:
    torch.manual_seed(0)
    model = fe.build(lambda: torch.nn.Linear(2, 1).bfloat16(), "sgd")
    update = UpdateOp(model, "loss", merge_grad=4)
    network = fe.Network([ModelOp(model, "x", "y"), Squares(("y", "t"), "loss"), update])
    with network(mode="train", epoch=1):
        network.run_step({"x": torch.ones(1, 2).bfloat16(), "t": torch.ones(1, 1).bfloat16()})
    state = update.state_dict()
    assert state["gradients"][0].dtype == np.float32
    update.load_state_dict(state)
    assert update.state_dict()["merged"] == 1


@pytest.mark.tf
@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("eager", [False, True])
def test_the_same_in_tensorflow(before: int, eager: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    values = np.random.default_rng(0).normal(size=(8, 4, 3)).astype("float32")

    def make_tf():
        tf.keras.utils.set_random_seed(0)
        model = fe.build(
            lambda: tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)]), "sgd"
        )
        update = UpdateOp(model, "loss", merge_grad=3)
        loss = SuperLoss(Squares(("y", "t"), "loss"))
        return fe.Network([ModelOp(model, "x", "y"), loss, update]), model, update, loss

    def run_tf(network, part):
        with network(mode="train", epoch=1, eager=eager):
            return [
                float(network.run_step({"x": tf.constant(v[:, :2]), "t": v[:, 2:]})["loss"])
                for v in part
            ]

    network, expected, _, _ = make_tf()
    losses = run_tf(network, values)
    first, model, update, loss = make_tf()
    assert update.state_dict() == {"merged": 0, "gradients": [None, None]}
    early = run_tf(first, values[:before])
    assert update.state_dict()["merged"] == before % 3
    second, other, other_update, other_loss = make_tf()
    other.set_weights(model.get_weights())
    other_update.load_state_dict(update.state_dict())
    other_loss.load_state_dict(loss.state_dict())
    np.testing.assert_allclose(early + run_tf(second, values[before:]), losses, rtol=1e-6)
    np.testing.assert_allclose(other.get_weights()[0], expected.get_weights()[0], rtol=1e-6)
