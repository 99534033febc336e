"""What ops remember from step to step, saved and given to others like them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
    assert [type(one) for one in state["gradients"]] == [torch.Tensor, torch.Tensor]
    assert [one.shape for one in state["gradients"]] == [(1, 2), (1,)]
    averages = loss.state_dict()["averages"]
    assert isinstance(averages["train"], float)
    assert averages["eval"] is None
    run(network, 1)
    assert update.state_dict()["merged"] == 0


def test_the_state_of_another_model_is_refused() -> None:
    _, model, update, _ = make()
    with pytest.raises(ValueError, match="gradients") as caught:
        update.load_state_dict({"merged": 1, "gradients": [None]})
    assert str(caught.value) == (
        f"The state to load has 1 gradients, but the model '{model.model_name}' has 2 trainable "
        "parameters. Load it into the UpdateOp of the model that it was saved from."
    )


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (3, "is not an UpdateOp's: it has no 'merged' and 'gradients'"),
        ({"merged": 1}, "is not an UpdateOp's: it has no 'merged' and 'gradients'"),
        (
            {"merged": -1, "gradients": [None, None]},
            "has -1 merged steps and gradients of type list",
        ),
        (
            {"merged": "1", "gradients": [None, None]},
            "has '1' merged steps and gradients of type list",
        ),
        (
            {"merged": 1, "gradients": [torch.ones(1, 2), torch.ones(2)]},
            "has gradient 1 of the shape (2,) and torch.float32",
        ),
        (
            {"merged": 1, "gradients": [torch.ones(1, 2), torch.ones(1, dtype=torch.complex64)]},
            "has gradient 1 of the shape (1,) and torch.complex64",
        ),
        ({"merged": 1, "gradients": ["one", None]}, "has gradient 0 of str"),
    ],
)
def test_a_bad_state_changes_nothing(state: Any, text: str) -> None:
    network, _, update, _ = make()
    run(network, 2)
    before = update.state_dict()
    with pytest.raises(ValueError, match=re.escape(f"The state to load {text}")):
        update.load_state_dict(state)
    after = update.state_dict()
    assert after["merged"] == 2
    assert all(map(torch.equal, after["gradients"], before["gradients"]))
    run(network, 1)


@pytest.mark.parametrize("state", [3, {}, {"averages": {"train": "much", "eval": None}}])
def test_a_bad_state_of_a_super_loss_changes_nothing(state: Any) -> None:
    network, _, _, loss = make()
    run(network, 2)
    before = loss.state_dict()
    with pytest.raises(ValueError, match=r"SuperLoss.*averages"):
        loss.load_state_dict(state)
    assert loss.state_dict() == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_average_goes_on_in_its_own_type(dtype: Any) -> None:
    losses = [torch.rand(3, dtype=dtype) for _ in range(6)]
    state = {"mode": "train", "warmup": False}
    ops = [SuperLoss(Squares(("y", "t"), "loss")) for _ in range(2)]
    for op in ops:
        op.build("torch")
    pairs = [[one, torch.zeros_like(one)] for one in losses]
    early = [ops[0].forward(pair, state) for pair in pairs[:3]]
    assert early[0].dtype == dtype
    ops[1].load_state_dict(ops[0].state_dict())
    for pair in pairs[3:]:
        one, two = (op.forward(pair, state) for op in ops)
        assert one.dtype == two.dtype == dtype
        assert torch.equal(one, two)


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


@pytest.mark.tf
def test_arrays_alone_are_remembered_in_tensorflow(tmp_path: Path) -> None:
    """So that numpy reads them from a file without unpickling."""
    tf = pytest.importorskip("tensorflow")

    def make_tf() -> Any:
        model = fe.build(
            lambda: tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)]), "sgd"
        )
        update = UpdateOp(model, "loss", merge_grad=3)
        return fe.Network([ModelOp(model, "x", "y"), Squares(("y", "t"), "loss"), update]), update

    network, update = make_tf()
    with network(mode="train", epoch=1):
        network.run_step({"x": tf.ones((4, 2)), "t": tf.ones((4, 1))})
    state = update.state_dict()
    np.savez(tmp_path / "state.npz", *state["gradients"])
    with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
        read = [file[name] for name in file.files]
    _, other = make_tf()
    other.load_state_dict({"merged": state["merged"], "gradients": read})
    assert other.state_dict()["merged"] == 1
    assert all(map(np.array_equal, other.state_dict()["gradients"], state["gradients"]))
    for bad in ([read[0], read[0]], [read[0].astype("complex64"), read[1]], [np.array("a"), None]):
        with pytest.raises(ValueError, match="The state to load has gradient"):
            other.load_state_dict({"merged": 1, "gradients": bad})
    assert all(map(np.array_equal, other.state_dict()["gradients"], state["gradients"]))
