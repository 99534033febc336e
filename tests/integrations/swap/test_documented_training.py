"""What FastEstimator's documentation says of ops on models: passes, gradients, attacks, updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange"),
]

from tests.integrations.swap.running import array, gradient_descent, linear, matrix_of, run, tensor

Fe = Any
X = np.float32([[1, 2], [3, 4]])
START = np.float32([[1, 2]])
RATE = 0.5


def model_of(fe: Fe, framework: str, **settings: Any) -> Any:
    settings = {"optimizer_fn": gradient_descent(framework, RATE), **settings}
    return fe.build(lambda: linear(framework), **settings)


def mean_op(fe: Fe, key: str = "y", output: str = "loss") -> Any:
    """The mean of the predictions as a loss: its gradient is the mean of the inputs."""

    def mean(y: Any) -> Any:
        return fe.backend.reduce_mean(y)

    return fe.op.tensorop.LambdaOp(fn=mean, inputs=key, outputs=output)


def trained(fe: Fe, framework: str, steps: int = 1, **settings: Any) -> Any:
    """Return the weights after some steps."""
    model = model_of(fe, framework)
    ops = fe.op.tensorop.model
    network = fe.Network(
        [
            ops.ModelOp(model, "x", "y"),
            mean_op(fe),
            ops.UpdateOp(model, "loss", **settings),
        ]
    )
    mode = "train"
    with network(mode=mode, epoch=1, ds_id=""):
        for _ in range(steps):
            network.run_step({"x": tensor(X, framework)})
    return matrix_of(model)


STEP = RATE * X.mean(axis=0, keepdims=True)


# ModelOp


def test_a_model_must_be_built(fe: Fe) -> None:
    with pytest.raises(AssertionError):
        fe.op.tensorop.model.ModelOp(linear("torch"), "x", "y")


def test_a_forward_pass(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.model.ModelOp(model_of(fe, framework), "x", "y")
    np.testing.assert_allclose(run(fe, framework, op, {"x": X})["y"], X @ START.T)


@pytest.mark.parametrize("by", ["name", "index"])
def test_intermediate_layers_follow_the_output(fe: Fe, framework: str, by: str) -> None:
    if framework == "torch":
        import torch

        first = linear("torch")
        layers: Any = torch.nn.Sequential(first, torch.nn.ReLU())
        layer: Any = "0" if by == "name" else 1  # the first of named_modules is the whole
    else:
        import tensorflow as tf

        inner = tf.keras.layers.Dense(1, use_bias=False, name="inner")
        layers = tf.keras.Sequential(
            [tf.keras.layers.Input((2,)), inner, tf.keras.layers.Activation("relu")]
        )
        layers.set_weights([START.T])
        layer = "inner" if by == "name" else 1  # the first is the input
    model = fe.build(lambda: layers, optimizer_fn=None)
    op = fe.op.tensorop.model.ModelOp(model, "x", ["y", "inside"], intermediate_layers=layer)
    result = run(fe, framework, op, {"x": -X})
    np.testing.assert_allclose(result["y"], [[0], [0]])
    np.testing.assert_allclose(result["inside"], -X @ START.T)


def test_what_is_trainable_keeps_gradients(fe: Fe) -> None:
    with pytest.raises(AssertionError):
        fe.op.tensorop.model.ModelOp(model_of(fe, "torch"), "x", "y", gradients=False)


def test_a_model_that_is_not_trainable_runs_as_in_evaluation(fe: Fe, framework: str) -> None:
    if framework == "torch":
        import torch

        drop: Any = torch.nn.Dropout(0.999)
    else:
        import tensorflow as tf

        drop = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dropout(0.999)])
    model = fe.build(lambda: drop, optimizer_fn=None)
    op = fe.op.tensorop.model.ModelOp(model, "x", "y", trainable=False)
    if framework == "tf":
        np.testing.assert_array_equal(run(fe, framework, op, {"x": X}, mode="train")["y"], X)
    np.testing.assert_array_equal(run(fe, framework, op, {"x": X}, mode="eval")["y"], X)


# UpdateOp


def test_an_update_follows_the_gradient(fe: Fe, framework: str) -> None:
    np.testing.assert_allclose(trained(fe, framework), START - STEP, rtol=1e-6)


def test_updates_are_for_training_only(fe: Fe, framework: str) -> None:
    model = model_of(fe, framework)
    ops = fe.op.tensorop.model
    everything = [ops.ModelOp(model, "x", "y"), mean_op(fe), ops.UpdateOp(model, "loss")]
    for mode in ("eval", "test", "infer"):
        run(fe, framework, everything, {"x": X}, mode=mode)
    np.testing.assert_array_equal(matrix_of(model), START)


@pytest.mark.parametrize("steps", [2, 3, 5, 6])
def test_merged_gradients(fe: Fe, framework: str, steps: int) -> None:
    """With merge_grad=3 only each third step updates, by the mean of three gradients."""
    found = trained(fe, framework, steps=steps, merge_grad=3)
    np.testing.assert_allclose(found, START - (steps // 3) * STEP, rtol=1e-6)


def test_gradients_that_are_given(fe: Fe, framework: str) -> None:
    model = model_of(fe, framework)
    ops = fe.op.tensorop
    double = lambda g: [2 * one for one in g]  # noqa: E731
    everything = [
        ops.model.ModelOp(model, "x", "y"),
        mean_op(fe),
        ops.gradient.GradientOp(finals="loss", outputs="gradients", model=model),
        ops.LambdaOp(fn=double, inputs="gradients", outputs="gradients"),
        ops.model.UpdateOp(model, "loss", gradients="gradients"),
    ]
    run(fe, framework, everything, {"x": X}, mode="train")
    np.testing.assert_allclose(matrix_of(model), START - 2 * STEP, rtol=1e-6)


def test_given_gradients_and_mixed_precision(fe: Fe) -> None:
    model = model_of(fe, "torch", mixed_precision=True)
    with pytest.raises(ValueError, match="gradients"):
        fe.op.tensorop.model.UpdateOp(model, "loss", gradients="gradients")


def test_a_deferred_update_comes_at_the_end(fe: Fe) -> None:
    """What the model gives after its update, in the same step, is of the weights from before."""
    model = model_of(fe, "torch")
    ops = fe.op.tensorop.model
    for defer, expected in ((True, START), (False, START - STEP)):
        model.weight.data = tensor(START, "torch").clone()
        everything = [
            ops.ModelOp(model, "x", "y"),
            mean_op(fe),
            ops.UpdateOp(model, "loss", defer=defer),
            ops.ModelOp(model, "x", "again"),
        ]
        result = run(fe, "torch", everything, {"x": X}, mode="train")
        np.testing.assert_allclose(result["again"], X @ expected.T, rtol=1e-6)
        np.testing.assert_allclose(matrix_of(model), START - STEP, rtol=1e-6)


# gradients


def test_gradients_of_a_watched_input(fe: Fe, framework: str) -> None:
    ops = fe.op.tensorop
    everything = [
        ops.gradient.Watch(inputs="x"),
        ops.LambdaOp(fn=lambda x: x * x * x, inputs="x", outputs="y"),
        ops.gradient.GradientOp(inputs="x", finals="y", outputs="slope"),
    ]
    result = run(fe, framework, everything, {"x": X})
    np.testing.assert_allclose(result["slope"], 3 * X * X, rtol=1e-6)


def test_gradients_of_several_inputs(fe: Fe, framework: str) -> None:
    ops = fe.op.tensorop
    everything = [
        ops.gradient.Watch(inputs=("x", "z")),
        ops.LambdaOp(fn=lambda x, z: (x * z, x * z), inputs=("x", "z"), outputs=("p", "q")),
        ops.gradient.GradientOp(inputs=("x", "z"), finals=("p", "q"), outputs=("dx", "dz")),
    ]
    result = run(fe, framework, everything, {"x": X, "z": X + 5})
    np.testing.assert_allclose(result["dx"], X + 5)
    np.testing.assert_allclose(result["dz"], X)


def test_gradients_of_a_model(fe: Fe, framework: str) -> None:
    ops, model = fe.op.tensorop, model_of(fe, framework)
    everything = [
        ops.model.ModelOp(model, "x", "y"),
        mean_op(fe),
        ops.gradient.GradientOp(finals="loss", outputs="gradients", model=model),
    ]
    (found,) = run(fe, framework, everything, {"x": X}, mode="train")["gradients"]
    np.testing.assert_allclose(found.reshape(1, 2), X.mean(axis=0, keepdims=True))


@pytest.mark.parametrize("given", ["both", "neither", "fewer finals", "fewer outputs"])
def test_inputs_and_model_exclude_each_other(fe: Fe, given: str) -> None:
    model = model_of(fe, "torch")
    settings: dict[str, Any] = {
        "both": {"finals": "y", "outputs": "g", "inputs": "x", "model": model},
        "neither": {"finals": "y", "outputs": "g"},
        "fewer finals": {"finals": "y", "outputs": ["g", "h"], "inputs": ["x", "z"]},
        "fewer outputs": {"finals": ["y", "z"], "outputs": "g", "model": model},
    }[given]
    with pytest.raises(AssertionError):
        fe.op.tensorop.gradient.GradientOp(**settings)


@pytest.mark.parametrize("clip", [{}, {"clip_low": -9.0, "clip_high": 9.0}], ids=["own", "given"])
def test_fgsm_goes_against_the_loss(fe: Fe, framework: str, clip: dict[str, float]) -> None:
    """Epsilon along the gradient's sign; clipped to the data's own range if none is given."""
    ops = fe.op.tensorop
    square = lambda x: (x - 2.5) ** 2  # noqa: E731
    everything = [
        ops.gradient.Watch(inputs="x"),
        ops.LambdaOp(fn=square, inputs="x", outputs="y"),
        mean_op(fe),
        ops.gradient.FGSM(data="x", loss="loss", outputs="attacked", epsilon=0.25, **clip),
    ]
    result = run(fe, framework, everything, {"x": X})
    expected = X + 0.25 * np.sign(X - 2.5)
    if not clip:
        expected = np.clip(expected, X.min(), X.max())
    np.testing.assert_allclose(result["attacked"], expected, rtol=1e-6)


# augmentation

IMAGES = np.random.default_rng(0).uniform(size=(4, 2, 3, 3)).astype("float32")
LABELS = np.eye(4, dtype="float32")


@pytest.mark.parametrize("name", ["MixUpBatch", "CutMixBatch"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": ["x"], "outputs": ["x", "y"]},
        {"inputs": ["x", "y"], "outputs": ["x"]},
        {"inputs": ["x", "y"], "outputs": ["x", "y"], "alpha": 0},
    ],
    ids=str,
)
def test_mixers_refuse(fe: Fe, name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        getattr(fe.op.tensorop.augmentation, name)(**wrong)


@pytest.mark.parametrize("name", ["MixUpBatch", "CutMixBatch"])
def test_mixers_are_for_training(fe: Fe, framework: str, name: str) -> None:
    op = getattr(fe.op.tensorop.augmentation, name)(["x", "y"], ["x", "y"])
    images = IMAGES if framework == "torch" else IMAGES.transpose(0, 2, 3, 1).copy()
    ops = [op, fe.op.tensorop.TensorOp("x", "seen")]
    kept = run(fe, framework, ops, {"x": images, "y": LABELS}, mode="eval")
    np.testing.assert_array_equal(kept["x"], images)
    mixed = run(fe, framework, op, {"x": images, "y": LABELS}, mode="train")
    # labels stay a distribution, of a sample and the one before it
    np.testing.assert_allclose(mixed["y"].sum(axis=1), np.ones(4), rtol=1e-5)
    rolled = np.roll(LABELS, 1, axis=0)
    assert not mixed["y"][(LABELS + rolled) == 0].any()


@pytest.mark.parametrize("shared", [True, False])
def test_mixup_mixes_in_the_proportion_of_the_labels(fe: Fe, framework: str, shared: bool) -> None:
    op = fe.op.tensorop.augmentation.MixUpBatch(["x", "y"], ["x", "y"], shared_beta=shared)
    result = run(fe, framework, op, {"x": IMAGES, "y": LABELS}, mode="train")
    parts = result["x"], IMAGES, np.roll(IMAGES, 1, axis=0)
    share = [
        float(np.mean((mixed - other) / (own - other)))
        for mixed, own, other in zip(*parts, strict=True)
    ]
    assert all(0.5 <= one <= 1 + 1e-5 for one in share)
    assert (len({round(one, 3) for one in share}) == 1) == shared
    for mixed, own, other, part in zip(*parts, share, strict=True):
        np.testing.assert_allclose(mixed, part * own + (1 - part) * other, rtol=1e-3, atol=1e-4)


def test_cutmix_pastes_patches(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.augmentation.CutMixBatch(["x", "y"], ["x", "y"])
    images = IMAGES if framework == "torch" else IMAGES.transpose(0, 2, 3, 1).copy()
    result = run(fe, framework, op, {"x": images, "y": LABELS}, mode="train")
    other = np.roll(images, 1, axis=0)
    own, pasted = (np.isclose(result["x"], one, rtol=1e-6, atol=1e-6) for one in (images, other))
    assert np.all(own | pasted)
    share = own.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(np.diag(array(result["y"])), share, atol=1e-5)
