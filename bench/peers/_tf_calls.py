"""The calls of TensorFlow that each op makes, written by hand: the oracle of `TFOpCost`.

As in `_torch_calls`: what the value of an op needs, once settings are known, and no more. What is
the same in every step is a tensor already, and where an operator, or an index, only comes to a
function after a look at its operands, that function stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bench.workloads.tf_op_cost import TFOpCost

Batch = dict[str, tf.Tensor]
Calls = Callable[[Batch], Any]

# TensorFlow looks for its Keras each time that somebody asks for it
LOSSES = tf.keras.losses
ENTROPY = (keras.ops if hasattr(keras, "ops") else tf.keras.backend).binary_crossentropy


def argmax(batch: Batch) -> Any:
    return tf.argmax(batch["x"], axis=1)


def average(batch: Batch) -> Any:
    return (batch["x"] + batch["y"]) / 2


def gather(batch: Batch) -> Any:
    return tf.gather(batch["x"], batch["y"], None, 1, 1)


def gather_largest(batch: Batch) -> Any:
    return tf.reduce_max(batch["x"], 1, False)


def delete(batch: Batch) -> Any:
    return ()


def lambda_op(batch: Batch) -> Any:
    return -batch["x"]


def sparse(batch: Batch) -> Any:
    return tf.reduce_mean(
        LOSSES.sparse_categorical_crossentropy(batch["y"], batch["x"], from_logits=True)
    )


def sparse_probabilities(batch: Batch) -> Any:
    return tf.reduce_mean(LOSSES.sparse_categorical_crossentropy(batch["y"], batch["x"]))


def categorical(batch: Batch) -> Any:
    return tf.reduce_mean(LOSSES.categorical_crossentropy(batch["y"], batch["x"], from_logits=True))


def binary(batch: Batch) -> Any:
    return tf.reduce_mean(tf.reduce_mean(ENTROPY(batch["y"], batch["x"]), axis=-1))


def focal(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    return _focus(ENTROPY(y, x), x, y)


def focal_logits(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    return _focus(ENTROPY(y, x, from_logits=True), tf.sigmoid(x), y)


def _focus(entropy: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    untrue = tf.subtract(1.0, y)
    right = tf.add(tf.multiply(y, x), tf.multiply(untrue, tf.subtract(1.0, x)))
    weight = tf.add(tf.multiply(y, 0.25), tf.multiply(untrue, 0.75))
    hard = tf.pow(tf.subtract(1.0, right), 2.0)
    loss = tf.multiply(weight, tf.multiply(hard, entropy))
    count = tf.maximum(tf.reduce_sum(y, axis=1, keepdims=True), 1)
    return tf.reduce_mean(tf.reduce_sum(tf.realdiv(loss, count), axis=1))


def hinge(batch: Batch) -> Any:
    missing = tf.maximum(tf.subtract(1.0, tf.multiply(batch["y"], batch["x"])), 0)
    return tf.reduce_mean(tf.reduce_mean(missing, axis=-1))


def l1(batch: Batch) -> Any:
    return tf.reduce_mean(tf.reduce_mean(tf.abs(tf.subtract(batch["x"], batch["y"])), axis=-1))


def l1_smooth(batch: Batch) -> Any:
    gap = tf.abs(tf.subtract(batch["x"], batch["y"]))
    small = tf.realdiv(tf.multiply(tf.square(gap), 0.5), 1.0)
    loss = tf.where(tf.less(gap, 1.0), small, tf.subtract(gap, 0.5))
    return tf.reduce_mean(tf.reduce_mean(loss, axis=-1))


def l1_huber(batch: Batch) -> Any:
    gap = tf.abs(tf.subtract(batch["x"], batch["y"]))
    small = tf.multiply(tf.square(gap), 0.5)
    large = tf.subtract(tf.multiply(gap, 1.0), 0.5)
    loss = tf.where(tf.less_equal(gap, 1.0), small, large)
    return tf.reduce_mean(tf.reduce_mean(loss, axis=-1))


def mse(batch: Batch) -> Any:
    return tf.reduce_mean(LOSSES.MSE(batch["y"], batch["x"]))


def watch(batch: Batch) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(batch["x"])
    return batch["x"]


def watched(batch: Batch) -> Any:
    x = batch["x"]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        return x * x


def gradient(batch: Batch) -> Any:
    x = batch["x"]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = x * x
        # the tape goes on to record what comes behind
        with tape.stop_recording():
            return tape.gradient(loss, x)


def fgsm(batch: Batch) -> Any:
    x = batch["x"]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = x * x
        with tape.stop_recording():
            found = tape.gradient(loss, x)
        moved = tf.add(x, tf.multiply(tf.sign(found), 0.01))
        return tf.clip_by_value(moved, tf.reduce_min(x), tf.reduce_max(x))


def once(batch: Batch) -> Any:
    return -batch["x"]


def twice(batch: Batch) -> Any:
    y = -batch["x"]
    return y + y


def thrice(batch: Batch) -> Any:
    x = batch["x"]
    for _ in range(3):
        x = -x
    return x


def fuse(batch: Batch) -> Any:
    return twice(batch)


def repeat(batch: Batch) -> Any:
    return thrice(batch)


def sometimes(batch: Batch) -> Any:
    x = batch["x"]
    chosen = tf.less(tf.random.uniform(()), 1.0)
    if tf.executing_eagerly():
        return -x if chosen else x
    return tf.cond(chosen, lambda: -x, lambda: x)


def mixup(batch: Batch) -> Any:
    x, y = batch["x"], batch["y"]
    drawn = _share(tf.shape(x)[:1])
    label_share = tf.reshape(drawn, [-1, 1])
    share = tf.reshape(drawn, [-1, 1, 1, 1])
    share = tf.maximum(share, 1 - share)
    return (
        x * share + tf.roll(x, 1, 0) * (1 - share),
        y * label_share + tf.roll(y, 1, 0) * (1 - label_share),
    )


def _share(shape: Any) -> tf.Tensor:
    one = tf.random.gamma(shape, 1.0)
    two = tf.random.gamma(shape, 1.0)
    total = one + two
    return tf.where(total > 0, one / total, tf.round(tf.random.uniform(tf.shape(one))))


def cutmix(batch: Batch) -> Any:
    images, labels = batch["x"], batch["y"]
    kept = _share([])
    kept = tf.maximum(kept, 1 - kept)
    x, y = tf.random.uniform(()), tf.random.uniform(())
    shape = tf.shape(images)
    height, width = shape[1], shape[2]
    left, right = _span(width, x, kept)
    top, bottom = _span(height, y, kept)
    rows, columns = tf.range(height), tf.range(width)
    in_rows = tf.logical_and(rows >= top, rows < bottom)
    in_columns = tf.logical_and(columns >= left, columns < right)
    in_box = tf.logical_and(in_rows[:, None], in_columns[None, :])[None, :, :, None]
    mixed = tf.where(in_box, tf.roll(images, 1, 0), images)
    area = tf.cast((right - left) * (bottom - top), tf.float32)
    kept = 1 - area / tf.cast(height * width, tf.float32)
    return mixed, labels * kept + tf.roll(labels, 1, 0) * (1 - kept)


def _span(length: tf.Tensor, middle: tf.Tensor, kept: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    size = tf.cast(length, tf.float32)
    half = size * tf.sqrt(1 - kept) / 2
    first = tf.round(tf.maximum(size * middle - half, 0.0))
    last = tf.round(tf.minimum(size * middle + half, size))
    return tf.cast(first, tf.int32), tf.cast(last, tf.int32)


def _normalize(model: Any, workload: TFOpCost) -> Calls:
    shift = tf.constant([0.4, 0.5, 0.6])
    scale = tf.constant([0.2, 0.3, 0.4]) + 1e-7
    return lambda batch: tf.realdiv(tf.subtract(batch["x"], shift), scale)


def _permute(model: Any, workload: TFOpCost) -> Calls:
    order = tf.constant([0, 3, 1, 2])
    return lambda batch: tf.transpose(batch["x"], order)


def _reshape(model: Any, workload: TFOpCost) -> Calls:
    lengths = tf.constant([-1, 108])
    return lambda batch: tf.reshape(batch["x"], lengths)


def _resize_3d(model: Any, workload: TFOpCost) -> Calls:
    places = tf.constant([1, 3])

    def calls(batch: Batch) -> Any:
        x = batch["x"]
        for axis in (1, 2, 3):
            x = tf.gather(x, places, None, axis)
        return x

    return calls


def _un_hadamard(model: Any, workload: TFOpCost) -> Calls:
    codes = tf.constant([[-1.0, 1, 1, 1], [1, -1, 1, -1], [-1, 1, -1, -1], [1, -1, -1, 1]])
    least = tf.constant(5 * (1 - 0.99999) / (0.99999 * 3))

    def calls(batch: Batch) -> Any:
        apart = tf.subtract(tf.expand_dims(batch["x"], 1), codes)
        distances = tf.reduce_sum(tf.abs(apart), -1)
        closeness = tf.realdiv(1.0, tf.maximum(distances, least))
        return tf.realdiv(closeness, tf.reduce_sum(closeness, -1, True))

    return calls


def _categorical_weighted(model: Any, workload: TFOpCost) -> Calls:
    weights = tf.constant([2.0, 1.0, 1.0, 0.5])

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        loss = LOSSES.categorical_crossentropy(y, x, from_logits=True)
        weighted = tf.multiply(loss, tf.gather(weights, tf.argmax(y, axis=-1)))
        return tf.reduce_mean(weighted)

    return calls


def _binary_weighted(model: Any, workload: TFOpCost) -> Calls:
    yes, weight, one = tf.constant(1, tf.int64), tf.constant(3.0), tf.constant(1.0)

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        loss = ENTROPY(y, x)
        # a class is an integer, and one that is neither yes nor no weighs 1
        weights = tf.where(tf.equal(tf.cast(y, tf.int64), yes), weight, one)
        return tf.reduce_mean(tf.reduce_mean(tf.multiply(loss, weights), axis=-1))

    return calls


def _dice(model: Any, workload: TFOpCost) -> Calls:
    overlap = _overlap()
    return lambda batch: -tf.reduce_mean(tf.reduce_mean(overlap(batch), axis=-1), axis=0)


def _dice_weighted(model: Any, workload: TFOpCost) -> Calls:
    overlap, weights = _overlap(), tf.constant([[2.0, 1.0, 1.0]])

    def calls(batch: Batch) -> Any:
        weighted = tf.multiply(overlap(batch), weights)
        return -tf.reduce_mean(tf.reduce_mean(weighted, axis=-1), axis=0)

    return calls


def _overlap() -> Callable[[Batch], tf.Tensor]:
    places = [1, 2]

    def overlap(batch: Batch) -> tf.Tensor:
        x, y = batch["x"], batch["y"]
        common = tf.reduce_sum(tf.multiply(x, y), axis=places)
        both = tf.add(tf.reduce_sum(x, axis=places), tf.reduce_sum(y, axis=places))
        return tf.realdiv(tf.multiply(common, 2.0), tf.add(both, 1e-6))

    return overlap


def _one_of(model: Any, workload: TFOpCost) -> Calls:
    logs = tf.math.log([[1.0, 0.0]])

    def calls(batch: Batch) -> Any:
        x = batch["x"]
        branches = [lambda: -x, lambda: x + x]
        place = tf.squeeze(tf.random.categorical(logs, 1, dtype=tf.int32))
        if tf.executing_eagerly():
            return branches[int(place)]()
        return tf.switch_case(place, branches)

    return calls


def _sparse_weighted(model: Any, workload: TFOpCost) -> Calls:
    weights = tf.constant([2.0, 1.0, 1.0, 0.5])

    def calls(batch: Batch) -> Any:
        x, y = batch["x"], batch["y"]
        loss = LOSSES.sparse_categorical_crossentropy(y, x, from_logits=True)
        return tf.reduce_mean(tf.multiply(loss, tf.gather(weights, y)))

    return calls


def _l2(model: Any, workload: TFOpCost) -> Calls:
    def calls(batch: Batch) -> Any:
        squares = [tf.nn.l2_loss(tf.convert_to_tensor(one)) for one in model.trainable_variables]
        return tf.add(tf.multiply(tf.reduce_sum(squares), 0.01), batch["x"])

    return calls


def _model(model: Any, workload: TFOpCost) -> Calls:
    return lambda batch: model(batch["x"], training=False)


def _update(model: Any, workload: TFOpCost) -> Calls:
    optimizer = workload.optimizer()
    variables = model.trainable_variables
    # A graph that must make variables is traced twice, or not at all.
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        _ = optimizer.iterations, optimizer.learning_rate

    def calls(batch: Batch) -> Any:
        with tf.GradientTape() as tape:
            z = model(batch["x"], training=True)
            loss = z * z
            mean = tf.reduce_mean(loss)
        gradients = tape.gradient(mean, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return z, loss

    return calls


def _super_loss(model: Any, workload: TFOpCost) -> Calls:
    return lambda batch: _weigh(_losses(batch), 1.0)


def _super_loss_exp(model: Any, workload: TFOpCost) -> Calls:
    kept = tf.Variable(0.0, trainable=False)
    started = tf.Variable(False, trainable=False)

    def calls(batch: Batch) -> Any:
        losses = _losses(batch)
        value = tf.stop_gradient(tf.reduce_mean(losses))
        before = kept.read_value()
        mean = tf.where(started.read_value(), before - 0.1 * (before - value), value)
        kept.assign(mean)
        started.assign(True)
        return _weigh(losses, tf.stop_gradient(mean))

    return calls


def _losses(batch: Batch) -> tf.Tensor:
    return LOSSES.sparse_categorical_crossentropy(batch["y"], batch["x"], from_logits=True)


def _weigh(losses: tf.Tensor, threshold: Any) -> tf.Tensor:
    """Do what a SuperLoss does, with a derivative of its own as the op's."""
    beta = losses - threshold
    log = -_lambertw(0.5 * tf.maximum(beta, -1.9999998 / math.e))
    return tf.reduce_mean(beta * tf.exp(log) + tf.pow(log, 2))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _lambertw(z: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Lambert's W by Halley's rule; a step that is timed asks for no gradient of it."""
    below = tf.maximum(2 * (1 + math.e * z), 0)
    root = tf.sqrt(below)
    near = -1 + root - below / 3 + 11 / 72 * below * root
    log = tf.math.log1p(tf.maximum(z, -0.3))
    far = log * (1 - tf.math.log1p(log) / (2 + log))
    w = tf.where(z < -0.2649, near, far)
    for _ in range(4):
        error = w - z * tf.exp(-w)
        bottom = 2 * (w + 1) ** 2 - (w + 2) * error
        w = w - tf.math.divide_no_nan(2 * (w + 1) * error, bottom)
    w = tf.where(z == math.inf, z, w)
    w = tf.where(z < -1 / math.e, tf.cast(math.nan, z.dtype), w)
    return w, lambda gradient: gradient * tf.exp(-w) / (1 + w)


_SIMPLE: tuple[Calls, ...] = (
    argmax,
    average,
    binary,
    categorical,
    cutmix,
    delete,
    fgsm,
    focal,
    focal_logits,
    fuse,
    gather,
    gather_largest,
    gradient,
    hinge,
    l1,
    l1_huber,
    l1_smooth,
    lambda_op,
    mixup,
    mse,
    once,
    repeat,
    sometimes,
    sparse,
    sparse_probabilities,
    thrice,
    twice,
    watch,
    watched,
)
_MADE: tuple[Callable[[Any, TFOpCost], Calls], ...] = (
    _binary_weighted,
    _categorical_weighted,
    _dice,
    _dice_weighted,
    _l2,
    _model,
    _normalize,
    _one_of,
    _permute,
    _reshape,
    _resize_3d,
    _sparse_weighted,
    _super_loss,
    _super_loss_exp,
    _un_hadamard,
    _update,
)


def calls_of(name: str, model: Any, workload: TFOpCost) -> Calls:
    """Return the calls of an op.

    Args:
        name: The name of its case.
        model: The model of ops that have one.
        workload: What the optimizer of a model that is trained comes from.
    """
    simple = {calls.__name__: calls for calls in _SIMPLE}
    if name in simple:
        return simple[name]
    return {make.__name__: make for make in _MADE}[f"_{name}"](model, workload)
