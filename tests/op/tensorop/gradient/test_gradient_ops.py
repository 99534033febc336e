"""Keys of gradient ops, and what those do outside of a network."""

from __future__ import annotations

import pytest
import torch

from fastnet.op.tensorop.gradient import FGSM, GradientOp


def test_keys_and_models() -> None:
    op = GradientOp(["y", "z"], ["a", "b"], ["x", "w"], mode="train", ds_id="d")
    assert (op.inputs, op.outputs) == (["x", "w", "y", "z"], ["a", "b"])
    assert (op.mode, op.ds_id, op.get_fe_models()) == ({"train"}, {"d"}, set())
    model = torch.nn.Linear(1, 1)
    assert GradientOp("y", "a", model=model).get_fe_models() == {model}


def test_it_keeps_its_graph_unless_told() -> None:
    op = GradientOp("y", "a", "x")
    assert op.fe_retain_graph() is True
    assert op.fe_retain_graph(False) is False
    assert op.fe_retain_graph() is False


def test_fgsm() -> None:
    x = torch.tensor([1.0, -3.0], requires_grad=True)
    moved = FGSM("x", "loss", "y", epsilon=0.5).forward([x, (x**2).sum()], {"tape": None})
    assert moved.tolist() == [1.0, -3.0]
    op = FGSM("x", "loss", "y", epsilon=0.5, clip_low=-9, clip_high=9)
    assert op.forward([x, (x**2).sum()], {"tape": None}).tolist() == [1.5, -3.5]


@pytest.mark.tf
def test_a_tape_of_the_program() -> None:
    tf = pytest.importorskip("tensorflow")
    op = GradientOp("loss", "z", "x")
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss, other = x**3, tf.constant(2.0) * 2
        (found,) = op.forward([x, loss], {"tape": tape})
        assert tape.gradient(found, x) is None  # nothing of it was recorded
        assert op.forward([x, other], {"tape": tape}) == [None]
    assert found.numpy().tolist() == [3.0, 12.0]
