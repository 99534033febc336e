"""XLA beside eager TensorFlow, operation by operation, for usual values and for unusual ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastnet
from fastnet.backend.model_metadata import get_metadata
from fastnet.network import TFNetwork
from fastnet.network.tf.compiled.vocabulary import SAME, WATCHED
from fastnet.op.tensorop import LambdaOp
from tests.network.keras_models import batches, keras, mlp, supervised, tf, variables_of, weights
from tests.network.tf.compiled.steps import fallbacks, is_compiled, warned

pytestmark = pytest.mark.tf

INF, NAN = float("inf"), float("nan")
# what is around the operations that the cases are about, is known when they are traced, or has no
# result to compare
AROUND = {"NoOp", "PlaceholderWithDefault", "PreventGradient", "Snapshot", "Concat", "Select"}
AROUND |= {"Rank", "Shape", "Size"}


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def odd() -> Any:
    """Return a vector with all kinds of numbers in it."""
    values = floats(24) * 3
    values[:8] = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e30]
    return values


def slopes(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(args)
            result = fn(*args)
        return [one for one in tape.gradient(result, args) if one is not None]

    return run


UNARY = [
    *(tf.abs, tf.acos, tf.acosh, tf.asin, tf.asinh, tf.atan, tf.atanh, tf.math.ceil, tf.cos),
    *(tf.cosh, tf.math.erfc, tf.exp, tf.math.expm1, tf.floor, tf.math.is_finite),
    *(tf.math.is_inf, tf.math.is_nan, tf.math.log, tf.math.log1p, tf.negative, tf.math.reciprocal),
    *(tf.math.rint, tf.round, tf.math.rsqrt, tf.sigmoid, tf.sign, tf.sin, tf.sinh, tf.sqrt),
    *(tf.square, tf.tan, tf.tanh, tf.nn.relu, tf.nn.leaky_relu, tf.nn.elu),
    *(tf.nn.selu, tf.nn.softplus, tf.nn.softsign, tf.nn.log_softmax, tf.nn.l2_loss),
    *(tf.reduce_sum, tf.reduce_mean, tf.reduce_prod, tf.cumsum, tf.ones_like, tf.zeros_like),
]
BINARY = [
    *(tf.add, tf.atan2, tf.math.divide_no_nan, tf.math.multiply_no_nan, tf.multiply, tf.subtract),
    *(tf.math.squared_difference, tf.math.xdivy, tf.math.xlogy, tf.math.xlog1py, tf.equal),
    *(tf.not_equal, tf.less, tf.less_equal, tf.greater, tf.greater_equal, tf.divide, tf.pow),
]


def _pool(x: Any) -> Any:
    return [tf.nn.max_pool2d(x, 2, 2, "SAME"), tf.nn.avg_pool2d(x, 3, 1, "VALID")]


def _pool3d(x: Any) -> Any:
    return [tf.nn.max_pool3d(x, 2, 2, "SAME"), tf.nn.avg_pool3d(x, 2, 1, "VALID")]


def _normed(x: Any) -> Any:
    return tf.compat.v1.nn.fused_batch_norm(x, tf.ones(2), tf.zeros(2))[0] ** 3


def _shapes(x: Any) -> Any:
    y = tf.reshape(tf.pad(x, [[1, 1], [0, 2]], constant_values=2.0), [-1, 3])
    y = tf.tile(tf.expand_dims(y, 1), [1, 2, 1])
    first, *_ = tf.split(tf.transpose(y, [1, 0, 2]), [1, 1])
    few, more = tf.unstack(tf.stack([tf.squeeze(first, 0), tf.reverse(first[0], [0])]))
    broad = tf.broadcast_to(few[:1], tf.shape(few))
    ones = tf.fill(tf.shape(few)[:1], 2.0)
    rest = tf.linalg.band_part(few, 1, 0), tf.range(tf.shape(few)[0]), tf.size(few), tf.rank(few)
    return [tf.concat([few, more, broad], 1), ones, tf.pad(x, [[1, 1], [0, 0]], "REFLECT"), *rest]


def _sliced(x: Any) -> Any:
    return [x[1:, ::-1], tf.slice(x, [0, 1], [2, 2]), x[..., tf.newaxis, 0], tf.split(x, 2)[1]]


def _sum(x: Any) -> Any:
    return tf.raw_ops.AddN(inputs=[x, x, tf.identity_n([x])[0]])


IMAGE = floats(2, 6, 6, 2)
TIED = np.maximum(IMAGE, 0)
TIED[0, :2, :2] = [[[NAN, 1], [2, 1]], [[1, INF], [0, 1]]]

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{f"{one.__name__}": (one, (odd(),)) for one in UNARY},
    **{
        f"slope of {one.__name__}": (slopes(one), (odd(),))
        for one in UNARY
        if "is_" not in one.__name__ and one not in (tf.nn.elu, tf.nn.selu, tf.reduce_prod)
    },
    **{f"{one.__name__} of two": (one, (odd(), odd()[::-1].copy())) for one in BINARY},
    **{
        f"slope of {one.__name__} of two": (slopes(one), (odd(), odd()[::-1].copy()))
        for one in BINARY
        if one(1.0, 1.0).dtype == tf.float32
    },
    "all and any": (
        lambda x: [tf.reduce_all(x > 0), tf.reduce_any(~(x > 0) & (x < 3) | (x > 9))],
        (odd(),),
    ),
    "products": (lambda x: [tf.math.cumprod(x), tf.reduce_prod(x, 0)], (floats(4, 3),)),
    "matrices": (
        lambda x: [tf.matmul(x, x, transpose_b=True), tf.einsum("ij,kj->ik", x, x)],
        (floats(4, 3),),
    ),
    "many matrices": (lambda x: tf.matmul(x, x, transpose_b=True), (floats(2, 4, 3),)),
    "a bias": (slopes(lambda x, y: tf.nn.bias_add(x, y) ** 2), (floats(4, 3), floats(3))),
    "pools": (_pool, (TIED,)),
    "slopes of pools": (slopes(lambda x: [y * y for y in _pool(x)]), (TIED,)),
    "pools of volumes": (_pool3d, (floats(1, 4, 4, 4, 2),)),
    "slopes of pools of volumes": (slopes(_pool3d), (floats(1, 4, 4, 4, 2),)),
    "a convolution": (
        slopes(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME") ** 2),
        (IMAGE, floats(3, 3, 2, 3)),
    ),
    "a dilated convolution": (
        lambda x, k: tf.nn.convolution(x, k, dilations=2, padding="SAME"),
        (IMAGE, floats(3, 3, 2, 3)),
    ),
    "blocks": (
        lambda x: tf.batch_to_space(
            tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]) * 2, [2, 2], [[0, 0], [1, 0]]
        ),
        (IMAGE,),
    ),
    "a depthwise convolution": (
        slopes(lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME") ** 2),
        (IMAGE, floats(3, 3, 2, 1)),
    ),
    "a convolution of volumes": (
        slopes(lambda x, k: tf.nn.conv3d(x, k, [1, 1, 1, 1, 1], "SAME") ** 2),
        (floats(1, 4, 4, 4, 2), floats(2, 2, 2, 2, 3)),
    ),
    "a norm of batches": (slopes(_normed), (IMAGE,)),
    "smooth sizes": (lambda x: tf.image.resize(x, (4, 9)), (IMAGE,)),
    "near sizes": (lambda x: tf.image.resize(x, (4, 9), "nearest"), (IMAGE,)),
    "shapes": (_shapes, (floats(4, 4),)),
    "slopes of shapes": (slopes(lambda x: _shapes(x)[0] ** 2), (floats(4, 4),)),
    "reflections": (slopes(lambda x: tf.pad(x, [[2, 1]], "REFLECT") ** 2), (floats(5),)),
    "pieces": (_sliced, (floats(4, 4),)),
    "slopes of pieces": (slopes(lambda x: [y * y for y in _sliced(x)]), (floats(4, 4),)),
    "classes": (lambda i: tf.one_hot(i, 3), (np.array([-1, 0, 2, 9]),)),
    "permutations": (lambda i: tf.math.invert_permutation(i), (np.array([2, 0, 1]),)),
    "a choice": (slopes(lambda x: tf.where(x > 0, x * x, 0.0)), (odd(),)),
    "a cross entropy": (
        slopes(lambda x: tf.nn.softmax_cross_entropy_with_logits(tf.ones_like(x) / 3, x)),
        (floats(4, 3),),
    ),
    "sums of many": (_sum, (odd(),)),
    "a stop": (slopes(lambda x: x * tf.stop_gradient(x)), (odd(),)),
    "a known shape": (lambda x: tf.ensure_shape(x, (24,)), (odd(),)),
    "shapes at once": (lambda x: tf.raw_ops.ShapeN(input=[x, x]), (floats(2, 3),)),
    "older names": (
        lambda x: [
            tf.raw_ops.Add(x=x, y=x),
            tf.raw_ops.ReciprocalGrad(y=x, dy=x),
            tf.raw_ops.OnesLike(x=x),
        ],
        (odd(),),
    ),
    "shapes of both": (
        lambda x: tf.raw_ops.BroadcastArgs(s0=tf.shape(x), s1=tf.constant([1])),
        (odd(),),
    ),
    "numbers of half": (
        lambda x: tf.cast(tf.cast(x, "float16") * 2, "float32"),
        (np.float32([1, 40000, NAN, -INF]),),
    ),
    "whole numbers": (lambda i: [i // 2, i % -3, i + 2**31, -i], (np.int32([7, -7, 2**31 - 1]),)),
    "a condition": (
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x - 1),
        (floats(3),),
    ),
    "a loop": (
        lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 99, lambda y: (y * y + 1,), [x])[0],
        (floats(3),),
    ),
    "a function": (tf.function(lambda x: x * x), (floats(3),)),
}


def network_of(fn: Callable[..., Any], count: int, compile: bool = True) -> TFNetwork:
    names = [f"x{number}" for number in range(count)]
    quiet = tf.autograph.experimental.do_not_convert(lambda *values: {"all": fn(*values)})
    return TFNetwork(LambdaOp(quiet, names, "y"), compile=compile)


def outcome(network: TFNetwork, args: tuple[Any, ...], eager: bool = False) -> list[Any]:
    with network("infer", 1, eager=eager):
        batch = {f"x{number}": tf.constant(one) for number, one in enumerate(args)}
        return [np.asarray(one) for one in tf.nest.flatten(network.run_step(batch)["y"])]


def types_in(fn: Callable[..., Any], args: tuple[Any, ...]) -> set[str]:
    quiet = tf.autograph.experimental.do_not_convert(fn)
    traced = tf.function(quiet).get_concrete_function(*map(tf.constant, args))
    return {one.type for one in traced.graph.get_operations()}


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_op_by_op(case: str) -> None:
    fn, args = CASES[case]
    network = network_of(fn, len(args))
    found = outcome(network, args)
    assert is_compiled(network), fallbacks(network)
    for one, other in zip(found, outcome(network, args, eager=True), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, 2e-5, 1e-6)


def test_all_that_is_said_to_be_the_same_is_in_a_case_above() -> None:
    seen = set().union(*(types_in(fn, args) for fn, args in CASES.values()))
    left = {one for one in SAME - seen - AROUND if "Variable" not in one and "Apply" not in one}
    assert left <= {"BatchMatMul", "ConcatOffset", "DynamicStitch", "BatchMatMulV3", "Split"}


def _gathered(x: Any, i: Any) -> Any:
    return tf.gather(x, i)


def _asserted(x: Any) -> Any:
    with tf.control_dependencies(
        [tf.raw_ops.Assert(condition=tf.reduce_all(x > 0), data=["all are to be positive", x])]
    ):
        return tf.identity(x)


LOGITS = floats(3, 4)
ONE, MANY = np.int32([1, 0]), np.int32([0, 7])
TABLE = tf.Variable(floats(4, 2))

# what is fine, and what makes a graph raise or XLA give something else
WATCHES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[tuple[Any, ...]]]] = {
    "a label": (
        lambda x, t: tf.nn.sparse_softmax_cross_entropy_with_logits(t, x),
        (LOGITS, np.int64([0, 1, 3])),
        [(LOGITS, np.int64([0, 1, 4])), (LOGITS, np.int64([0, 1, -1]))],
    ),
    "an index": (_gathered, (floats(3), ONE), [(floats(3), MANY), (floats(3), -ONE)]),
    "an index of a table": (lambda i: tf.gather(TABLE, i), (ONE,), [(MANY,), (-ONE,)]),
    "a divisor": (lambda i, j: i // j, (MANY, ONE + 1), [(MANY, ONE)]),
    "a rest": (lambda i, j: i % j, (MANY, ONE + 1), [(MANY, ONE)]),
    "a cut quotient": (tf.truncatediv, (MANY, ONE + 1), [(MANY, ONE)]),
    "a power": (tf.pow, (MANY, ONE), [(MANY, -ONE)]),
    "a segment": (
        lambda x, i: tf.math.unsorted_segment_sum(x, i, 3),
        (floats(2), ONE),
        [(floats(2), MANY)],
    ),
    "an assertion": (
        _asserted,
        (np.float32([1, 2]),),
        [(np.float32([1, -2]),)],
    ),
    "finite numbers": (
        lambda x: tf.debugging.check_numerics(x, "strange"),
        (floats(3),),
        [(odd(),)],
    ),
    "an integer of a float": (
        lambda x: [tf.cast(x, "int32"), tf.cast(tf.abs(x), "uint8")],
        (np.float32([1.5, -2.5]),),
        [(np.float32([300.0, NAN]),), (np.float32([1e20, -INF]),)],
    ),
    "the greatest": (tf.reduce_max, (floats(9),), [(odd(),), (odd()[::-1].copy(),)]),
    "the least": (tf.reduce_min, (floats(9),), [(odd(),)]),
    "the greater": (
        tf.maximum,
        (floats(24), -floats(24)),
        [(odd(), floats(24)), (floats(24), odd())],
    ),
    "the lesser": (
        tf.minimum,
        (floats(24), -floats(24)),
        [(odd(), floats(24)), (floats(24), odd())],
    ),
    "bounds": (lambda x: tf.clip_by_value(x, -1.0, 1.0), (floats(9),), [(odd(),)]),
    "raw bounds": (
        lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=-1.0, clip_value_max=1.0),
        (floats(9),),
        [(odd(),)],
    ),
    "the place of the greatest": (tf.argmax, (floats(9),), [(odd(),)]),
    "the place of the least": (tf.argmin, (floats(9),), [(odd(),)]),
    "an error function": (tf.math.erf, (floats(9),), [(odd(),)]),
    "a bounded relu": (tf.nn.relu6, (floats(9),), [(odd(),)]),
    "the slope of a bounded relu": (slopes(tf.nn.relu6), (floats(9),), [(odd(),)]),
    "the slope of elu": (slopes(tf.nn.elu), (floats(9),), [(odd(),)]),
    "the slope of selu": (slopes(tf.nn.selu), (floats(9),), [(odd(),)]),
    "probabilities": (tf.nn.softmax, (floats(9),), [(odd(),)]),
}


def same_or_raised(network: TFNetwork, args: tuple[Any, ...]) -> Any:
    try:
        return outcome(network, args)
    except tf.errors.OpError as error:
        # without the numbers that names of functions end in
        return str(error).partition("{{")[0], getattr(error, "__notes__", None)


@pytest.mark.parametrize("case", WATCHES)
def test_values_that_xla_does_not_treat_as_a_graph_does(case: str) -> None:
    fn, fine, others = WATCHES[case]
    network = network_of(fn, len(fine))
    plain = network_of(fn, len(fine), compile=False)
    np.testing.assert_equal(len(outcome(network, fine)), len(outcome(plain, fine)))
    for one, other in zip(outcome(network, fine), outcome(plain, fine), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    assert is_compiled(network), fallbacks(network)
    for args in others:
        with warned():
            found = same_or_raised(network, args)
        np.testing.assert_equal(found, same_or_raised(plain, args))


def test_all_that_is_watched_is_in_a_case_above() -> None:
    seen = set().union(*(types_in(fn, fine) for fn, fine, _ in WATCHES.values()))
    assert seen >= WATCHED - {"CheckNumericsV2", "Div", "Mod", "RealDiv", "TruncateMod"}


def test_a_step_that_is_refused_changes_nothing() -> None:
    model = fastnet.build(mlp, "adam", model_name="model")
    network = TFNetwork(supervised(model), compile=True)
    fine, *_ = batches(1)
    wrong = {**fine, "t": fine["t"] + 1}
    with network("train", 1):
        network.run_step(fine)
        before = weights(model), moments(model)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Received a label value of 3"):
            network.run_step(wrong)
        np.testing.assert_equal((weights(model), moments(model)), before)
        network.run_step(fine)
    assert is_compiled(network)
    assert not np.array_equal(weights(model)[0], before[0][0])


def moments(model: Any) -> list[Any]:
    """Copy what an optimizer remembers of gradients: a graph that raises may have counted on."""
    return [
        np.array(one)
        for one in variables_of(get_metadata(model, "current_optimizer"))
        if len(one.shape)
    ]


def test_a_first_step_that_is_refused_is_compiled_later() -> None:
    model = fastnet.build(mlp, keras.optimizers.SGD, model_name="model")
    network = TFNetwork(supervised(model), compile=True)
    fine, *_ = batches(1)
    with network("train", 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Received a label value of 3"):
            network.run_step({**fine, "t": fine["t"] + 1})
        network.run_step(fine)
    assert network.traces[-1].fallback is None
    assert network.traces[-1].compile_seconds > 0


def test_the_first_step_in_which_values_are_unlike_is_told() -> None:
    network = network_of(tf.reduce_max, 1)
    with warned() as texts:
        outcome(network, (floats(3),))
        outcome(network, (np.float32([1, NAN, 2]),))
        outcome(network, (np.float32([1, NAN, 2]),))
    assert [trace.reason for trace in network.traces] == [
        "first step in mode 'infer'",
        "a step has run twice",
    ]
    (text,) = texts
    assert "values came, such as NaN, that XLA does not treat as the graph does" in text
