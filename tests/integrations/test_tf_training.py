"""The same training in TensorFlow, step by step: results, losses, weights, optimizers' memories.

Both packages make the same calls of Keras, so results are equal to the bit unless a test says why
not. One reason there is: FastEstimator's graph is of one batch size, fastnet's of any. TensorFlow
reorders the sum of several gradients of one variable only where it knows how large they are.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations.sides import Sides
from tests.integrations.tf_sides import (
    MARKS,
    WEIGHTS,
    agree,
    batches,
    memory,
    mlp,
    one_hot_loss,
    steps,
    tf,
)

pytestmark = MARKS

keras = tf.keras

STEPS = 20
MODES = ("eval", "test", "infer")


@pytest.fixture(params=["static", "eager"])
def eager(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "eager")


def trainer(lib: Any, model: Any, *more: Any, **settings: Any) -> Any:
    """A network that trains a model on one-hot classes."""
    models = lib.op.tensorop.model
    return lib.Network(
        [
            models.ModelOp(model, "x", "y"),
            one_hot_loss(lib),
            *more,
            models.UpdateOp(model, "loss", **settings),
        ]
    )


OPTIMIZERS = {
    **{name: name for name in ("adam", "rmsprop", "sgd")},
    "legacy momentum": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9, nesterov=True),
    "legacy amsgrad": lambda: keras.optimizers.legacy.Adam(0.01, amsgrad=True, clipnorm=0.1),
    "new momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "new adam": lambda: keras.optimizers.Adam(0.01),
    "new adamw with an average": lambda: keras.optimizers.AdamW(0.01, use_ema=True),
    "a schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    ),
}


EAGERLY = ("sgd", "adam", "legacy momentum", "new adam")


@pytest.mark.parametrize(
    ("optimizer", "eager"),
    [
        *(pytest.param(name, False, id=f"{name}-static") for name in OPTIMIZERS),
        *(pytest.param(name, True, id=f"{name}-eager") for name in EAGERLY),
    ],
)
def test_one_model(sides: Sides, optimizer: str, eager: bool) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, OPTIMIZERS[optimizer], model_name="mlp")
        results = steps(trainer(lib, model), batches(STEPS), eager=eager)
        return results, model, memory(model)

    results, _, _ = agree(sides, program)
    assert float(results[-1]["loss"]) != float(results[0]["loss"])


def test_batches_of_several_sizes(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        data = [*batches(2), *batches(2, size=3), *batches(2, size=1), *batches(2, size=8)]
        return steps(trainer(lib, model), data), model

    agree(sides, program)


@pytest.mark.parametrize("truth", ["label", "target"])
def test_other_losses(sides: Sides, truth: str) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        losses = lib.op.tensorop.loss
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y"),
                losses.CrossEntropy(("y", "label"), "loss", from_logits=True)
                if truth == "label"
                else losses.MeanSquaredError(("y", "target"), "loss"),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        return steps(network, batches(8)), model

    agree(sides, program)


def noisy() -> Any:
    """A network that acts differently in training and out of it, and that draws numbers."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(7),
            layers.BatchNormalization(momentum=0.5),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


@pytest.mark.parametrize(("trainable", "eager"), [(True, False), (True, True), (False, True)])
def test_modes(sides: Sides, trainable: bool, eager: bool) -> None:
    """Layers train in "train" only, and only if the op is trainable; losses stay out of "infer".

    FastEstimator's random numbers start over whenever a network is left, so fastnet's do so here.
    """

    def program(lib: Any) -> Any:
        model = lib.build(noisy, "adam", model_name="noisy")
        network = lib.Network(
            [
                lib.op.tensorop.model.ModelOp(model, "x", "y", trainable=trainable),
                one_hot_loss(lib),
                lib.op.tensorop.model.UpdateOp(model, "loss"),
            ]
        )
        told = []
        for epoch in (1, 2):
            for mode in ("train", "eval", "test", "infer"):
                told.append(steps(network, batches(2, seed=epoch), mode, epoch, eager=eager))
                told.append(model.get_weights())
                keras.backend.clear_session()
        return told

    agree(sides, program)


def test_warmup_changes_no_weight(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        network = trainer(lib, model)
        warm = steps(network, batches(2), warmup=True)
        before = model.get_weights()
        return warm, before, steps(network, batches(2)), model

    agree(sides, program)


def test_two_models_in_a_chain(sides: Sides) -> None:
    """Each has a loss of its own besides one that they share."""

    def layer(inputs: int, outputs: int) -> Any:
        return keras.Sequential([keras.layers.Input((inputs,)), keras.layers.Dense(outputs)])

    def program(lib: Any) -> Any:
        encoder = lib.build(lambda: layer(6, 4), "adam", model_name="encoder")
        decoder = lib.build(lambda: layer(4, 3), "sgd", model_name="decoder")
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(encoder, "x", "code"),
                models.ModelOp(decoder, "code", "y"),
                one_hot_loss(lib),
                ops.LambdaOp(
                    lambda loss, code: loss + tf.reduce_mean(tf.square(code)), ["loss", "code"], "e"
                ),
                models.UpdateOp(encoder, "e"),
                models.UpdateOp(decoder, "loss"),
            ]
        )
        return steps(network, batches(8)), encoder, decoder, memory(encoder)

    agree(sides, program)


def test_adversaries(sides: Sides, eager: bool) -> None:
    """A generator and a discriminator: each loss runs through both."""

    def program(lib: Any) -> Any:
        maker, judge = lib.build(
            lambda: [mlp(6, 6), mlp(6, 1)],
            ["adam", lambda: keras.optimizers.legacy.Adam(0.01)],
            model_name=["maker", "judge"],
        )
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        cross_entropy = lib.op.tensorop.loss.CrossEntropy
        network = lib.Network(
            [
                models.ModelOp(maker, "x", "made"),
                models.ModelOp(judge, "made", "verdict"),
                models.ModelOp(judge, "x", "other verdict"),
                ops.LambdaOp(tf.ones_like, "verdict", "yes"),
                ops.LambdaOp(tf.zeros_like, "verdict", "no"),
                cross_entropy(("verdict", "yes"), "maker loss", from_logits=True),
                cross_entropy(("verdict", "no"), "made loss", from_logits=True),
                cross_entropy(("other verdict", "yes"), "found loss", from_logits=True),
                ops.LambdaOp(lambda a, b: a + b, ["made loss", "found loss"], "judge loss"),
                models.UpdateOp(maker, "maker loss"),
                models.UpdateOp(judge, "judge loss"),
            ]
        )
        results = steps(network, batches(8), eager=eager)
        return results, maker, judge, memory(maker), memory(judge)

    # two losses, and so two gradients to add, for each of the judge's variables
    agree(sides, program, rtol=0.0 if eager else WEIGHTS)


@pytest.mark.parametrize(
    ("first", "second", "eager"),
    [(True, True, False), (True, False, True), (False, True, False), (False, False, True)],
)
def test_updates_put_off(sides: Sides, first: bool, second: bool, eager: bool) -> None:
    """A later op reads the model: if the update in the middle is deferred, with its old weights."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                models.UpdateOp(model, "loss", defer=first),
                models.ModelOp(model, "x", "y again"),
                one_hot_loss(lib, "loss again", "y again"),
                models.UpdateOp(model, "loss again", defer=second),
                ops.LambdaOp(
                    lambda y, z: tf.reduce_sum(tf.abs(y - z)), ["y", "y again"], "difference"
                ),
            ]
        )
        return steps(network, batches(4), eager=eager), model, memory(model)

    results, _, _ = agree(sides, program)
    assert bool(results[0]["difference"] == 0) is first


@pytest.mark.parametrize(
    ("merge", "defer", "eager"),
    # in a graph FastEstimator cannot defer what it adds up: see test_tf_mended.py
    [(2, False, False), (3, False, True), (3, True, True)],
)
def test_gradients_added_up(sides: Sides, merge: int, defer: bool, eager: bool) -> None:
    """The count of steps goes on from one epoch, and from one mode, to the next."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        network = trainer(lib, model, merge_grad=merge, defer=defer)
        told: list[Any] = []
        for epoch in (1, 2, 3):
            told.append(steps(network, batches(4, seed=epoch), epoch=epoch, eager=eager))
            told.append(steps(network, batches(1), "eval", epoch, eager=eager))
            told.append(model.get_weights())
        return told, memory(model)

    agree(sides, program)


def test_gradients_that_an_op_has_made(sides: Sides, eager: bool) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")

        class Clipped(lib.op.tensorop.TensorOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                gradients = state["tape"].gradient(data, model.trainable_variables)
                return [tf.clip_by_value(gradient, -0.01, 0.01) for gradient in gradients]

        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib),
                Clipped("loss", "gradients", mode="train"),
                models.UpdateOp(model, "loss", gradients="gradients"),
            ]
        )
        results = steps(network, batches(5), wanted={"loss"}, eager=eager)
        return results, model, network.get_loss_keys()

    agree(sides, program)


def test_a_loss_with_elements_counts_by_its_mean(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "adam", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                one_hot_loss(lib, average_loss=False),
                lib.op.tensorop.LambdaOp(tf.square, "y", "squares"),
                models.UpdateOp(model, "loss"),
                models.UpdateOp(model, "squares"),
            ]
        )
        return steps(network, batches(6)), model, sorted(model.loss_name)

    agree(sides, program)


def regularized() -> Any:
    layers, l2 = keras.layers, keras.regularizers.l2
    return keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(5, kernel_regularizer=l2(0.1), activity_regularizer=l2(0.01)),
            layers.Dense(3, bias_regularizer=l2(0.2)),
        ]
    )


@pytest.mark.parametrize(("merge", "eager"), [(1, False), (2, True)])
def test_losses_of_the_model_itself(sides: Sides, merge: int, eager: bool) -> None:
    """Regularizers, of weights and of what a layer gives, count in the update, not in the loss."""

    def program(lib: Any) -> Any:
        model = lib.build(regularized, "sgd", model_name="regularized")
        network = trainer(lib, model, merge_grad=merge)
        return steps(network, batches(6), eager=eager), model

    results, model = agree(sides, program)
    assert any(float(abs(bias).sum()) for bias in model.get_weights()[1::2])
    assert len(results) == 6


class Shared(keras.Model):  # type: ignore[misc]
    """Several inputs, several outputs, and a part that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.left = keras.layers.Dense(3)
        self.right = keras.layers.Dense(3)
        self.idle = keras.layers.Dense(3)

    def call(self, x: Any, z: Any) -> Any:
        return self.left(x) + self.right(z), self.left(x) * self.idle(z)


def shared() -> Any:
    model = Shared()
    model(tf.zeros((1, 6)), tf.zeros((1, 3)))
    return model


def functional() -> Any:
    """Two inputs, which Keras wants as a list, and two outputs."""
    x, z = keras.Input((6,)), keras.Input((3,))
    joined = keras.layers.Concatenate()([x, z])
    return keras.Model([x, z], [keras.layers.Dense(3)(joined), keras.layers.Dense(2)(joined)])


@pytest.mark.parametrize(
    ("model_fn", "eager"), [(shared, False), (functional, False), (functional, True)]
)
def test_several_inputs_and_outputs(sides: Sides, model_fn: Any, eager: bool) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(model_fn, "adam", model_name="model")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, ["x", "target"], ["y", "z"]),
                one_hot_loss(lib),
                models.UpdateOp(model, "loss"),
            ]
        )
        return steps(network, batches(5), eager=eager), model

    # the gradients of two outputs are added
    agree(sides, program, rtol=0.0 if eager else WEIGHTS)


@pytest.mark.parametrize("layers", ["hidden", 1, -1, ["last", "hidden"]])
def test_intermediate_layers(sides: Sides, layers: Any) -> None:
    count = len(layers) if isinstance(layers, list) else 1
    keys = ["y", *(f"layer {number}" for number in range(count))]

    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", keys, intermediate_layers=layers),
                one_hot_loss(lib),
                lib.op.tensorop.LambdaOp(
                    lambda loss, inner: loss + 0.1 * tf.reduce_mean(tf.square(inner)),
                    ["loss", keys[1]],
                    "total",
                    mode="!infer",
                ),
                models.UpdateOp(model, "total"),
            ]
        )
        trained = steps(network, batches(4), eager=layers != "hidden")
        return trained, [steps(network, batches(2), mode, eager=True) for mode in MODES]

    agree(sides, program)


def test_a_model_without_gradients(sides: Sides) -> None:
    """The teacher's pass is on no tape; the student learns from it."""

    def program(lib: Any) -> Any:
        teacher, student = lib.build(
            lambda: [noisy(), mlp()], [None, "adam"], model_name=["teacher", "student"]
        )
        models = lib.op.tensorop.model

        class Slope(lib.op.tensorop.TensorOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                gradients = state["tape"].gradient(data, teacher.trainable_variables)
                return tf.constant([gradient is None for gradient in gradients])

        network = lib.Network(
            [
                models.ModelOp(teacher, "x", "truth", trainable=False, gradients=False),
                models.ModelOp(student, "x", "y"),
                lib.op.tensorop.LambdaOp(
                    lambda y, truth: tf.reduce_mean(tf.square(y - truth)), ["y", "truth"], "loss"
                ),
                Slope("loss", "no slope", mode="train"),
                models.UpdateOp(student, "loss"),
            ]
        )
        results = steps(network, batches(5))
        return results, steps(network, batches(2), "eval"), teacher, student

    results, *_ = agree(sides, program)
    assert bool(tf.reduce_all(results[0]["no slope"]))


def test_layers_that_are_frozen(sides: Sides, eager: bool) -> None:
    """Before the first epoch, and then others in a later one."""

    def program(lib: Any) -> Any:
        def half_frozen() -> Any:
            model = mlp()
            model.layers[0].trainable = False
            return model

        model = lib.build(half_frozen, "sgd", model_name="mlp")
        network = trainer(lib, model)
        told: list[Any] = []
        for epoch in (1, 2, 3):
            model.layers[0].trainable = epoch % 2 == 0
            model.layers[1].trainable = epoch % 2 == 1
            told.append(steps(network, batches(2, seed=epoch), epoch=epoch, eager=eager))
            told.append(model.get_weights())
        return told

    agree(sides, program)


def test_a_dataset_of_its_own(sides: Sides) -> None:
    """Ops for one dataset only: its loss is another, and only it trains the second model."""

    def program(lib: Any) -> Any:
        front, back = lib.build(
            lambda: [mlp(), mlp()], ["adam", "adam"], model_name=["front", "back"]
        )
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(front, "x", "y"),
                models.ModelOp(back, "x", "y", ds_id="second"),
                one_hot_loss(lib),
                lib.op.tensorop.LambdaOp(lambda loss: loss * 2, "loss", "loss", ds_id="!second"),
                models.UpdateOp(front, "loss", ds_id="!second"),
                models.UpdateOp(back, "loss", ds_id="second"),
            ]
        )
        told = []
        for epoch in (1, 2):
            for ds_id in ("", "first", "second"):
                told.append(steps(network, batches(2, seed=epoch), epoch=epoch, ds_id=ds_id))
        return told, front, back

    agree(sides, program)


@pytest.mark.parametrize("wanted", [None, set(), {"loss"}, {"y"}, {"x", "loss"}, {"no such key"}])
def test_keys_that_are_wanted(sides: Sides, wanted: Any) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        network = trainer(lib, model, lib.op.tensorop.LambdaOp(lambda x: x * 2, "x", "x"))
        with network("train", 1, "", wanted, eager=True):
            told = network.ctx_inputs, network.ctx_gpu_inputs, network.ctx_outputs
            return told, dict(network.run_step(batches(1)[0]))

    agree(sides, program)


def test_what_else_is_in_a_batch(sides: Sides, eager: bool) -> None:
    """Strings, numbers and nests, which ops read, or which only pass through."""

    def program(lib: Any) -> Any:
        ops = lib.op.tensorop
        network = lib.network.TFNetwork(
            [
                ops.LambdaOp(
                    lambda x, scale, nest: {"scaled": [x * scale, (nest["deep"][0] + 1,)]},
                    ["x", "scale", "nest"],
                    "result",
                ),
                ops.LambdaOp(lambda words: tf.strings.length(words), "words", "lengths"),
            ]
        )
        batch = {
            "x": tf.constant([1.0, 2.0]),
            "scale": 3.0,
            "nest": {"deep": [tf.constant([1, 2]), "a name"]},
            "words": tf.constant(["one", "three"]),
            "name": "passes by",
            "nothing": None,
        }
        return steps(network, [batch, {**batch, "scale": 4.0}], "infer", eager=eager)

    agree(sides, program)


def test_conditions_and_loops_over_tensors(sides: Sides) -> None:
    """AutoGraph makes them part of the graph, also in a forward of one's own."""

    def program(lib: Any) -> Any:
        class Collatz(lib.op.tensorop.TensorOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                count = tf.constant(0)
                while tf.reduce_any(data > 1):
                    data = tf.where(data % 2 == 0, data // 2, 3 * data + 1)
                    count += 1
                if count > 10:
                    count = -count
                return count + state["epoch"]

        network = lib.network.TFNetwork([Collatz("x", "y")])
        return [
            steps(network, [{"x": tf.constant([value])} for value in (1, 2, 7)], "infer", epoch)
            for epoch in (1, 2)
        ]

    agree(sides, program)


@pytest.mark.parametrize(
    ("optimizer", "merge"), [("adam", 2), (lambda: keras.optimizers.Adam(0.01), 1)]
)
def test_mixed_precision(sides: Sides, optimizer: Any, merge: int) -> None:
    """float16, with a loss that is scaled: also the scale is the same at the end."""

    def program(lib: Any) -> Any:
        model = lib.build(mlp, optimizer, model_name="mlp", mixed_precision=True)
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.LambdaOp(lambda y: tf.cast(y, tf.float32), "y", "y32"),
                one_hot_loss(lib, y="y32"),
                models.UpdateOp(model, "loss", merge_grad=merge),
            ]
        )
        told = {
            "mixed": (network.mixed_precision, model.mixed_precision),
            "optimizer": type(model.current_optimizer).__name__,
            "train": steps(network, batches(8)),
            "eval": steps(network, batches(2), "eval"),
            "infer": steps(network, batches(2), "infer"),
        }
        return told, model, memory(model)

    told, _, _ = agree(sides, program)
    assert told["train"][0]["y"].dtype == tf.float16


@pytest.mark.parametrize(
    ("optimizer", "merge"), [("adam", 1), (lambda: keras.optimizers.Adam(0.01), 2)]
)
def test_gradients_of_embeddings(sides: Sides, optimizer: Any, merge: int) -> None:
    """They are slices of the table, and not all of it."""
    rows = tf.constant([[1, 2, 2], [0, 2, 9], [3, 3, 3], [1, 0, 9]])

    def embedding() -> Any:
        layers = keras.layers
        return keras.Sequential(
            [
                layers.Input((3,), dtype="int32"),
                layers.Embedding(10, 4),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )

    def program(lib: Any) -> Any:
        model = lib.build(embedding, optimizer, model_name="embedding")
        data = [{**batch, "x": rows} for batch in batches(4, size=4)]
        return steps(trainer(lib, model, merge_grad=merge), data), model

    agree(sides, program)


def test_random_numbers_and_variables_of_ops(sides: Sides, eager: bool) -> None:
    def program(lib: Any) -> Any:
        calls = tf.Variable(0.0)

        def fn(x: Any) -> Any:
            calls.assign_add(1.0)
            return x * tf.random.uniform((2,)) + calls

        network = lib.network.TFNetwork([lib.op.tensorop.LambdaOp(fn, "x", "y")])
        return steps(network, [{"x": tf.ones(2)}] * 4, "infer", eager=eager), float(calls)

    assert agree(sides, program)[1] == 4


def test_tensors_made_of_several(sides: Sides, eager: bool) -> None:
    def program(lib: Any) -> Any:
        ops = lib.op.tensorop
        network = lib.network.TFNetwork(
            [
                ops.LambdaOp(lambda ragged: ragged + 1, "ragged", "ragged"),
                ops.LambdaOp(tf.sparse.to_dense, "sparse", "dense"),
            ]
        )
        data = [
            {
                "ragged": tf.ragged.constant(rows),
                "sparse": tf.sparse.from_dense([[1.0, 0.0, len(rows)]]),
            }
            for rows in ([[1, 2], [3]], [[], [4, 5, 6], [7]])
        ]
        results = steps(network, data, "infer", eager=eager)
        return [(result["ragged"].to_list(), result["dense"]) for result in results]

    agree(sides, program)
