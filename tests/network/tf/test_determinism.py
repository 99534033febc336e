"""Files and checkpoints while TensorFlow's op determinism is on, which forbids random seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.subprocesses import run_python

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tf

PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
import fastnet
from fastnet.backend import load_model, save_model
from fastnet.op.tensorop.model import ModelOp
from tests.network.keras_models import keras, mlp, same_weights, supervised, batches, train

tf.config.experimental.enable_op_determinism()

def make(seed):
    keras.utils.set_random_seed(seed)
    model = fastnet.build(mlp, "adam", model_name="net")
    return fastnet.Network(supervised(model)), model

(network, model), (other, twin) = make(0), make(1)
train(network, batches(2))
load_model(twin, save_model(model, sys.argv[1], save_optimizer=True), load_optimizer=True)
assert same_weights(model, twin)
path = fastnet.save_checkpoint(f"{sys.argv[1]}/run.ckpt", network)
train(network, batches(2, seed=1))
fastnet.load_checkpoint(path, other)
train(other, batches(2, seed=1))
assert same_weights(model, twin)

generator = tf.random.Generator.from_seed(3)
tf.random.set_global_generator(generator)
path = fastnet.save_checkpoint(f"{sys.argv[1]}/run.ckpt", network)
drawn = generator.uniform((2,)).numpy()
tf.random.set_global_generator(None)
fastnet.load_checkpoint(path, other)
assert (tf.random.get_global_generator().uniform((2,)).numpy() == drawn).all()
"""


def test_files_and_checkpoints(tmp_path: Path) -> None:
    done = run_python("-c", PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
