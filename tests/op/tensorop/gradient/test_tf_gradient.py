"""GradientOp of TensorFlow values, outside of a network: the tape is whatever it is given."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from fastnet.op.tensorop.gradient import GradientOp

pytestmark = pytest.mark.tf

BUILT = pytest.mark.parametrize("built", [False, True])


def made(built: bool) -> GradientOp:
    op = GradientOp(finals="loss", outputs="z", inputs="x")
    if built:
        op.build("tf")
    return op


@BUILT
@pytest.mark.parametrize("recording", [False, True])
def test_a_tape_that_records_or_not(built: bool, recording: bool) -> None:
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = x * x * x
        if recording:
            (found,) = made(built).forward([x, loss], {"tape": tape})
            assert tape.gradient(found, x) is None  # nothing of it was recorded
    if not recording:
        (found,) = made(built).forward([x, loss], {"tape": tape})
    assert found.numpy().tolist() == [3.0, 12.0]


@BUILT
def test_a_final_that_does_not_depend_on_its_input(built: bool) -> None:
    x = tf.constant(1.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = tf.constant(2.0) * 2
        assert made(built).forward([x, loss], {"tape": tape}) == [None]
