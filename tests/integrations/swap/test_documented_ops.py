"""What FastEstimator's documentation says of tensor ops, of meta ops and of losses.

Each fact is tested in FastEstimator as it is, and swapped. Normalize is left out: FastEstimator's
needs torchvision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange"),
]

from tests.integrations.swap.running import is_swapped, linear, run, tensor

Fe = Any
X = np.float32([[1, 5, 3], [6, 4, 2]])


def one_op(fe: Fe, framework: str, op: Any, mode: str = "train", **batch: Any) -> dict[str, Any]:
    return run(fe, framework, op, batch, mode=mode)


# ops


def test_lambda_op(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.LambdaOp(
        fn=lambda x, z: (x + z, x - z), inputs=("x", "z"), outputs=("sum", "difference")
    )
    result = one_op(fe, framework, op, x=X, z=2 * X)
    np.testing.assert_array_equal(result["sum"], 3 * X)
    np.testing.assert_array_equal(result["difference"], -X)


def test_delete(fe: Fe, framework: str) -> None:
    ops = [
        fe.op.tensorop.LambdaOp(fn=lambda x: x + 1, inputs="x", outputs="y"),
        fe.op.tensorop.Delete(keys="y"),
        fe.op.tensorop.LambdaOp(fn=lambda x: x + 2, inputs="x", outputs="z"),
    ]
    result = run(fe, framework, ops, {"x": X})
    assert "y" not in result
    np.testing.assert_array_equal(result["z"], X + 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_argmax(fe: Fe, framework: str, axis: int) -> None:
    op = fe.op.tensorop.Argmax(inputs="x", outputs="y", axis=axis)
    np.testing.assert_array_equal(one_op(fe, framework, op, x=X)["y"], X.argmax(axis))


def test_argmax_of_several(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.Argmax(inputs=["x", "z"], outputs=["a", "b"], axis=1)
    result = one_op(fe, framework, op, x=X, z=-X)
    np.testing.assert_array_equal(result["a"], X.argmax(1))
    np.testing.assert_array_equal(result["b"], X.argmin(1))


def test_average(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.Average(inputs=["x", "z", "w"], outputs="y")
    result = one_op(fe, framework, op, x=X, z=2 * X, w=6 * X)
    np.testing.assert_allclose(result["y"], 3 * X, rtol=1e-6)


def test_gather_takes_the_largest_of_each_sample(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.Gather(inputs="x", outputs="y")
    if not is_swapped(fe):
        # it looks at indices that it does not have
        with pytest.raises(IndexError):
            one_op(fe, framework, op, x=X)
        return
    np.testing.assert_array_equal(one_op(fe, framework, op, x=X)["y"].reshape(-1), [5, 6])


def test_gather_by_indices(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.Gather(inputs="x", indices="place", outputs="y")
    result = one_op(fe, framework, op, x=X, place=np.int64([2, 0]))
    np.testing.assert_array_equal(result["y"].reshape(-1), [3, 6])


def test_permute(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.Permute(inputs="x", outputs="y", permutation=[1, 0])
    np.testing.assert_array_equal(one_op(fe, framework, op, x=X)["y"], X.T)


def test_reshape(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.Reshape(inputs="x", outputs="y", shape=[3, -1])
    np.testing.assert_array_equal(one_op(fe, framework, op, x=X)["y"], X.reshape(3, 2))


VOLUME = np.arange(64, dtype="float32").reshape(1, 4, 4, 4)


@pytest.mark.parametrize("how", ["nearest", "area"])
def test_resize_3d(fe: Fe, framework: str, how: str) -> None:
    """To half of the size: the nearest value, or the mean of eight."""
    blocks = VOLUME[0].reshape(2, 2, 2, 2, 2, 2)
    halved = blocks.mean(axis=(1, 3, 5))
    # what is nearest is a matter of taste unless all of a block are alike
    volume = halved.repeat(2, 0).repeat(2, 1).repeat(2, 2)[None] if how == "nearest" else VOLUME
    volume = volume[:, None] if framework == "torch" else volume[..., None]
    op = fe.op.tensorop.Resize3D("x", "y", output_shape=[2, 2, 2], resize_mode=how)
    result = one_op(fe, framework, op, x=volume)["y"].reshape(2, 2, 2)
    np.testing.assert_allclose(result, halved)


def test_resize_3d_refuses(fe: Fe) -> None:
    with pytest.raises((AssertionError, ValueError)):
        fe.op.tensorop.Resize3D("x", "y", output_shape=[2, 2, 2], resize_mode="cubic")
    with pytest.raises((AssertionError, ValueError)):
        fe.op.tensorop.Resize3D("x", "y", output_shape=[2, 2])


def test_unhadamard_undoes_hadamard(fe: Fe, framework: str) -> None:
    """The length of a code is the smallest power of two that has room for all classes."""
    op = fe.op.tensorop.UnHadamard(inputs="x", outputs="y", n_classes=3)
    coded = fe.op.numpyop.univariate.Hadamard(inputs="c", outputs="x", n_classes=3)
    samples = np.stack([coded.forward([np.int64(one)], {"mode": "train"})[0] for one in range(3)])
    assert samples.shape == (3, 4)
    result = one_op(fe, framework, op, x=samples.astype("float32"))["y"]
    assert result.shape == (3, 3)
    np.testing.assert_array_equal(result.argmax(axis=1), [0, 1, 2])
    np.testing.assert_allclose(result.sum(axis=1), np.ones(3), rtol=1e-5)


# meta ops


def add(fe: Fe, number: float, key: str = "x", output: str = "x", **settings: Any) -> Any:
    def plus(x: Any) -> Any:
        return x + number

    return fe.op.tensorop.LambdaOp(fn=plus, inputs=key, outputs=output, **settings)


def test_fuse_runs_one_after_the_other(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.meta.Fuse([add(fe, 1), add(fe, 10, output="y"), add(fe, 100, "y", "z")])
    result = one_op(fe, framework, op, x=X)
    np.testing.assert_array_equal(result["z"], X + 111)
    assert op.inputs == ["x"]
    assert set(op.outputs) == {"x", "y", "z"}


def test_fuse_refuses(fe: Fe) -> None:
    fuse = fe.op.tensorop.meta.Fuse
    for wrong in (
        [],
        [add(fe, 1, mode="train"), add(fe, 1, mode="eval")],
        [add(fe, 1, ds_id="a"), add(fe, 1)],
    ):
        with pytest.raises(ValueError, match="Fuse"):
            fuse(wrong)


def test_one_of_runs_one(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.meta.OneOf(add(fe, 1), add(fe, 2))
    for _ in range(4):
        added = one_op(fe, framework, op, x=X)["x"] - X
        assert np.unique(added).tolist() in ([1], [2])


@pytest.mark.parametrize(("probs", "number"), [([1.0, 0.0], 1), ([0.0, 1.0], 2)])
def test_one_of_by_probabilities(fe: Fe, framework: str, probs: list[float], number: int) -> None:
    op = fe.op.tensorop.meta.OneOf(add(fe, 1), add(fe, 2), probs=probs)
    np.testing.assert_array_equal(one_op(fe, framework, op, x=X)["x"], X + number)


def test_one_of_refuses(fe: Fe) -> None:
    one_of = fe.op.tensorop.meta.OneOf
    with pytest.raises(AssertionError):
        one_of(add(fe, 1), add(fe, 2), probs=[0.5, 0.6])
    with pytest.raises(AssertionError):
        one_of(add(fe, 1), add(fe, 2), probs=[1.0])
    for other in (add(fe, 2, "z"), add(fe, 2, output="z"), add(fe, 2, mode="eval")):
        with pytest.raises(AssertionError):
            one_of(add(fe, 1), other)


@pytest.mark.parametrize(("prob", "number"), [(0.0, 0), (1.0, 5)])
def test_sometimes(fe: Fe, framework: str, prob: float, number: int) -> None:
    op = fe.op.tensorop.meta.Sometimes(add(fe, 5), prob=prob)
    np.testing.assert_array_equal(one_op(fe, framework, op, x=X)["x"], X + number)


def zero(fe: Fe) -> Any:
    return fe.op.tensorop.LambdaOp(fn=lambda x: x * 0.0, inputs="x", outputs="z")


def test_repeat_a_number_of_times(fe: Fe, framework: str) -> None:
    """The documented static example."""
    ops = [zero(fe), fe.op.tensorop.meta.Repeat(add(fe, 1, "z", "z"), repeat=5)]
    np.testing.assert_array_equal(run(fe, framework, ops, {"x": [3.0]})["z"], [5])


def test_repeat_as_long_as_a_function_says(fe: Fe, framework: str) -> None:
    """The documented dynamic example."""
    repeat = fe.op.tensorop.meta.Repeat(add(fe, 1, "z", "z"), repeat=lambda z: z[0] < 6.5)
    np.testing.assert_array_equal(run(fe, framework, [zero(fe), repeat], {"x": [3.0]})["z"], [7])


def test_repeat_runs_at_least_once(fe: Fe, framework: str) -> None:
    repeat = fe.op.tensorop.meta.Repeat(add(fe, 1, "z", "z"), repeat=lambda z: z[0] < -1.0)
    np.testing.assert_array_equal(run(fe, framework, [zero(fe), repeat], {"x": [3.0]})["z"], [1])


def test_repeat_has_a_limit(fe: Fe, framework: str) -> None:
    repeat = fe.op.tensorop.meta.Repeat(
        add(fe, 1, "z", "z"), repeat=lambda z: z[0] < 100.0, max_iter=4
    )
    np.testing.assert_array_equal(run(fe, framework, [zero(fe), repeat], {"x": [3.0]})["z"], [4])


@pytest.mark.parametrize(
    "wrong", [{"repeat": 0}, {"repeat": 2, "max_iter": 3}, {"repeat": bool, "max_iter": 0}], ids=str
)
def test_repeat_refuses(fe: Fe, wrong: dict[str, Any]) -> None:
    if wrong["repeat"] is bool:
        wrong = {**wrong, "repeat": lambda z: z < 1}
    with pytest.raises(ValueError, match=r"[Rr]epeat"):
        fe.op.tensorop.meta.Repeat(add(fe, 1), **wrong)


# losses

SCORES = np.float32([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
CLASSES = np.int64([1, 2])
ONE_HOT = np.float32([[0, 1, 0], [0, 0, 1]])
BY_CLASS = -np.log(np.float32([0.5, 0.1]))


def loss_of(fe: Fe, framework: str, name: str, predicted: Any, true: Any, **settings: Any) -> Any:
    op = getattr(fe.op.tensorop.loss, name)(("p", "t"), "loss", **settings)
    return one_op(fe, framework, op, p=predicted, t=true)["loss"]


@pytest.mark.parametrize("form", [None, "sparse", "categorical"])
def test_cross_entropy_of_classes(fe: Fe, framework: str, form: str | None) -> None:
    """Without a form it goes by the ranks."""
    truths = {None: (CLASSES, ONE_HOT), "sparse": (CLASSES,), "categorical": (ONE_HOT,)}[form]
    for truth in truths:
        loss = loss_of(fe, framework, "CrossEntropy", SCORES, truth, form=form)
        np.testing.assert_allclose(loss, BY_CLASS.mean(), rtol=1e-5)


@pytest.mark.parametrize("form", [None, "binary"])
def test_cross_entropy_of_two_classes(fe: Fe, framework: str, form: str | None) -> None:
    predicted, truth = np.float32([[0.9], [0.2]]), np.float32([[1], [1]])
    if form is None:
        predicted, truth = predicted[..., None], truth[..., None]
    loss = loss_of(fe, framework, "CrossEntropy", predicted, truth, form=form)
    np.testing.assert_allclose(loss, -np.log([0.9, 0.2]).mean(), rtol=1e-4)


def test_cross_entropy_from_logits(fe: Fe, framework: str) -> None:
    loss = loss_of(fe, framework, "CrossEntropy", np.log(SCORES) + 3, CLASSES, from_logits=True)
    np.testing.assert_allclose(loss, BY_CLASS.mean(), rtol=1e-5)


def test_cross_entropy_of_each_sample(fe: Fe, framework: str) -> None:
    loss = loss_of(fe, framework, "CrossEntropy", SCORES, CLASSES, average_loss=False)
    np.testing.assert_allclose(loss, BY_CLASS, rtol=1e-5)


@pytest.mark.parametrize("truth", [CLASSES, ONE_HOT], ids=["sparse", "categorical"])
def test_class_weights(fe: Fe, framework: str, truth: Any) -> None:
    loss = loss_of(
        fe,
        framework,
        "CrossEntropy",
        SCORES,
        truth,
        average_loss=False,
        class_weights={1: 3.0, 2: 0.5},
    )
    np.testing.assert_allclose(loss, BY_CLASS * [3, 0.5], rtol=1e-5)


@pytest.mark.parametrize("wrong", [[1.0, 2.0], {"1": 2.0}, {1: "2"}], ids=str)
def test_class_weights_that_are_refused(fe: Fe, wrong: Any) -> None:
    with pytest.raises(AssertionError):
        fe.op.tensorop.loss.CrossEntropy(("p", "t"), "loss", class_weights=wrong)


P, T = np.float32([[0.0, 2.0], [3.0, -1.0]]), np.float32([[0.5, 0.0], [3.0, 1.0]])
OFF = np.abs(P - T)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("MeanSquaredError", {}, (OFF**2)),
        ("L1_Loss", {}, OFF),
        (
            "L1_Loss",
            {"loss_type": "Smooth", "beta": 0.8},
            np.where(OFF < 0.8, OFF**2 / 1.6, OFF - 0.4),
        ),
        (
            "L1_Loss",
            {"loss_type": "Huber", "beta": 0.8},
            np.where(OFF < 0.8, OFF**2 / 2, 0.8 * (OFF - 0.4)),
        ),
    ],
    ids=["squared", "L1", "smooth", "Huber"],
)
@pytest.mark.parametrize("average", [True, False])
def test_losses_of_differences(
    fe: Fe, framework: str, name: str, settings: Any, expected: Any, average: bool
) -> None:
    loss = loss_of(fe, framework, name, P, T, average_loss=average, **settings)
    expected = expected.mean(axis=1)
    np.testing.assert_allclose(loss, expected.mean() if average else expected, rtol=1e-5)


def test_hinge(fe: Fe, framework: str) -> None:
    truth = np.float32([[1, -1], [1, -1]])
    loss = loss_of(fe, framework, "Hinge", P, truth)
    np.testing.assert_allclose(loss, np.maximum(0, 1 - P * truth).mean(), rtol=1e-5)


def test_focal_loss(fe: Fe, framework: str) -> None:
    """Cross-entropy that counts less where the prediction is good: by (1 - p_t) ** gamma."""
    p, t = np.float32([[0.9], [0.3], [0.6]]), np.float32([[1], [1], [0]])
    likely = np.where(t == 1, p, 1 - p)
    weight = np.where(t == 1, 0.25, 0.75)
    expected = -weight * (1 - likely) ** 2 * np.log(likely)
    loss = loss_of(fe, framework, "FocalLoss", p, t, from_logits=False, normalize=False)
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-4)


@pytest.mark.parametrize("soft", [True, False])
def test_dice_loss(fe: Fe, framework: str, soft: bool) -> None:
    p = np.random.default_rng(0).uniform(size=(2, 3, 4, 4)).astype("float32")
    t = (p > 0.6).astype("float32")
    power = 2 if soft else 1
    both = (p * t).sum(axis=(2, 3))
    score = 2 * both / ((p**power).sum(axis=(2, 3)) + (t**power).sum(axis=(2, 3)))
    arrays = (p, t) if framework == "torch" else (p.transpose(0, 2, 3, 1), t.transpose(0, 2, 3, 1))
    loss = loss_of(
        fe,
        framework,
        "DiceLoss",
        *[one.copy() for one in arrays],
        soft_dice=soft,
        epsilon=1e-6,
        average_loss=True,
        channel_average=True,
    )
    np.testing.assert_allclose(loss, -score.mean(), rtol=1e-4)


def test_l2_regularization_adds_the_weights(fe: Fe, framework: str) -> None:
    """Half of the sum of their squares, times beta."""
    model = fe.build(lambda: linear(framework), optimizer_fn=None)
    op = fe.op.tensorop.loss.L2Regularizaton("x", "y", model=model, beta=0.1)
    result = one_op(fe, framework, op, x=np.float32(2.0).reshape(()))["y"]
    np.testing.assert_allclose(result, 2 + 0.1 * (1 + 4) / 2, rtol=1e-5)


def test_loss_op_passes_values_through(fe: Fe) -> None:
    op = fe.op.tensorop.loss.LossOp(("p", "t"), "loss")
    assert op.average_loss
    values = [tensor(P, "torch"), tensor(T, "torch")]
    assert op.forward(values, {"mode": "train"}) is values


def super_loss(fe: Fe, **settings: Any) -> Any:
    inner = fe.op.tensorop.loss.MeanSquaredError(("p", "t"), "loss")
    return fe.op.tensorop.loss.SuperLoss(inner, **settings)


def test_super_loss_becomes_the_loss_as_regularization_grows(fe: Fe, framework: str) -> None:
    """But for the threshold, which is taken off."""
    op = super_loss(fe, threshold=1.0, regularization=1e6, output_confidence="sure")
    result = one_op(fe, framework, op, p=P, t=T)
    np.testing.assert_allclose(result["loss"], (OFF**2).mean() - 1, rtol=1e-3)
    np.testing.assert_allclose(result["sure"].reshape(-1), np.ones(2), rtol=1e-3)


def test_super_loss_trusts_easy_samples(fe: Fe, framework: str) -> None:
    op = super_loss(fe, threshold="exp", output_confidence="sure")
    sure = one_op(fe, framework, op, p=P, t=np.float32([[0, 2], [9, 9]]))["sure"].reshape(-1)
    assert sure[0] > sure[1]


@pytest.mark.parametrize(
    "wrong", [{"regularization": 0}, {"regularization": -1.0}, {"threshold": "mean"}], ids=str
)
def test_super_loss_refuses(fe: Fe, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="SuperLoss"):
        super_loss(fe, **wrong)
