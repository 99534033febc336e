"""The recipes of docs/keras.md beside loops with a GradientTape: the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docs.programs import DOCS

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tf

SECTION = (DOCS / "keras.md").read_text(encoding="utf-8").partition("## Beside a `GradientTape`")[2]
SETUP, *RECIPES = SECTION.split("\n### ")
Names = dict[str, Any]


def program(text: str) -> str:
    return text.partition("```python\n")[2].partition("```")[0]


def run(recipe: int, names: Names) -> None:
    tf.keras.utils.set_random_seed(0)
    exec(program(RECIPES[recipe]), names)


def cross_entropy(y: Any, scores: Any) -> Any:
    losses = tf.keras.losses.sparse_categorical_crossentropy
    return losses(y, scores, from_logits=True)


def update(model: Any, optimizer: Any, loss: Callable[[], Any]) -> None:
    """Take one step."""
    with tf.GradientTape() as tape:
        value = loss()
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))


def classify(model: Any, data: Iterable[Any], optimizer: Any) -> None:
    for batch in data:

        def loss(batch: Any = batch) -> Any:
            return tf.reduce_mean(cross_entropy(batch["y"], model(batch["x"], training=True)))

        update(model, optimizer, loss)


def made(make: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a model with the weights that a recipe begins with, and its optimizer."""
    tf.keras.utils.set_random_seed(0)
    return make(), tf.keras.optimizers.Adam()


def assert_same(model: Any, expected: Any) -> None:
    for value, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.chdir(tmp_path)
    names: Names = {}
    exec(program(SETUP), names)
    return names


def test_model_losses(names: Names) -> None:
    run(0, names)
    model, optimizer = made(names["make_regularized"])
    for batch in names["batches"]:

        def loss(batch: Any = batch) -> Any:
            scores = model(batch["x"], training=True)
            return tf.reduce_mean(cross_entropy(batch["y"], scores)) + sum(model.losses)

        update(model, optimizer, loss)
    assert_same(names["model"], model)


def test_gradient_penalty(names: Names) -> None:
    run(1, names)
    model, optimizer = made(lambda: names["make_model"](1))
    for batch in names["batches"]:

        def loss(x: Any = batch["x"]) -> Any:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = model(x, training=True)
            slope = inner.gradient(score, x)
            return tf.reduce_mean(score) + 10 * tf.reduce_mean((tf.norm(slope, axis=1) - 1) ** 2)

        update(model, optimizer, loss)
    assert_same(names["model"], model)


def test_several_critic_steps(names: Names) -> None:
    run(2, names)
    critic, critic_optimizer = made(lambda: names["make_model"](1))
    generator, generator_optimizer = names["make_model"](4), tf.keras.optimizers.Adam()
    for step, batch in enumerate(names["batches"].repeat(3), start=1):
        x = batch["x"]

        def critic_loss(x: Any = x) -> Any:
            fake = critic(generator(x, training=True), training=True)
            return tf.reduce_mean(fake) - tf.reduce_mean(critic(x, training=True))

        def generator_loss(x: Any = x) -> Any:
            return -tf.reduce_mean(critic(generator(x, training=True), training=True))

        update(critic, critic_optimizer, critic_loss)
        if step % 3 == 0:
            update(generator, generator_optimizer, generator_loss)
    assert_same(names["critic"], critic)
    assert_same(names["generator"], generator)


def test_weights_of_classes_and_samples(names: Names) -> None:
    run(3, names)
    model, optimizer = made(names["make_model"])
    for batch in names["batches"]:

        def loss(batch: Any = batch) -> Any:
            weights = tf.where(batch["y"] == 1, 3.0, 1.0) * tf.abs(batch["x"][:, 0])
            scores = model(batch["x"], training=True)
            return tf.reduce_mean(cross_entropy(batch["y"], scores) * weights)

        update(model, optimizer, loss)
    assert_same(names["model"], model)


def test_freezing(names: Names) -> None:
    run(4, names)
    model, optimizer = made(names["make_model"])
    optimizer.build(model.trainable_variables)
    for trainable in (False, True):
        model.layers[0].trainable = trainable
        classify(model, names["batches"], optimizer)
    assert_same(names["model"], model)


def test_metrics(names: Names, capsys: pytest.CaptureFixture[str]) -> None:
    run(4, names)
    run(5, names)
    model, optimizer = made(names["make_model"])
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    for batch in names["batches"]:
        accuracy.update_state(batch["y"], model(batch["x"]))
        classify(model, [batch], optimizer)
    assert capsys.readouterr().out == f"accuracy {accuracy.result():.3f}\n"
    assert_same(names["model"], model)


def test_recurrent_layers_and_masks(names: Names) -> None:
    run(6, names)
    model, optimizer = made(names["make_tagger"])
    for batch in names["texts"]:

        def loss(ids: Any = batch["ids"], tags: Any = batch["tags"]) -> Any:
            mask = tf.cast(ids != 0, "float32")
            each = cross_entropy(tf.maximum(tags, 0), model(ids, training=True))
            return tf.reduce_sum(each * mask) / tf.reduce_sum(mask)

        update(model, optimizer, loss)
    assert_same(names["model"], model)


def test_saving(names: Names) -> None:
    run(4, names)
    run(7, names)
    model, optimizer = made(names["make_model"])
    for _ in range(2):
        classify(model, names["batches"], optimizer)
    assert_same(names["model"], model)
