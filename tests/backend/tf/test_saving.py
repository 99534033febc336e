"""Files of Keras models and optimizers: all layouts, damaged files, hostile files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
h5py = pytest.importorskip("h5py")

import fastnet
from fastnet.backend import load_model, save_model
from fastnet.backend.tf.optimizers import load_optimizer_state, optimizer_state
from tests.network.keras_models import (
    KERAS_3,
    batches,
    keras,
    layers,
    mlp,
    same_weights,
    supervised,
    train,
    weights,
)

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore:You are saving your model as")]


def build(optimizer: Any = "adam", **settings: Any) -> Any:
    return fastnet.build(mlp, optimizer, model_name="net", **settings)


def test_the_scale_of_a_loss(tmp_path: Path) -> None:
    model, other = (build("adam", mixed_precision=True) for _ in range(2))
    broken = {**batches(1)[0], "x": tf.fill((8, 6), float("inf"))}
    train(fastnet.Network(supervised(model)), [broken])  # it is halved

    def scale(one: Any) -> float:
        optimizer = one.current_optimizer
        return float(optimizer.scale_loss(1.0) if KERAS_3 else optimizer.loss_scale)

    assert scale(model) < scale(other)
    load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
    assert scale(other) == scale(model)


def test_the_architecture(tmp_path: Path) -> None:
    model = build()
    path = save_model(model, tmp_path, save_optimizer=True, save_architecture=True)
    kept = tmp_path / ("net.keras" if KERAS_3 else "net")
    assert kept.is_file() if KERAS_3 else kept.is_dir()
    assert {*os.listdir(tmp_path)} == {os.path.basename(path), "net_opt.safetensors", kept.name}
    again = keras.models.load_model(kept)
    assert same_weights(model, again)
    np.testing.assert_array_equal(again(tf.ones((2, 6))), model(tf.ones((2, 6))))


@pytest.mark.parametrize("setting", ["learning_rate", "weight_decay"])
def test_settings_of_another_kind(setting: str) -> None:
    model = build()
    state = optimizer_state(model.current_optimizer, model)
    state[setting] = None if setting == "learning_rate" else 0.5
    with pytest.raises(ValueError, match=f"its {setting} is"):
        load_optimizer_state(model.current_optimizer, model, state, "it")


ENDINGS = [".weights.h5", ".keras", ".h5"]


def save(model: Any, folder: Path, ending: str) -> str:
    path = str(folder / f"saved{ending}")
    if ending == ".weights.h5" or (ending == ".h5" and not KERAS_3):
        model.save_weights(path)
    elif ending == ".h5":
        model.save(path, include_optimizer=False)
    else:
        model.save(path)
    return path


def trained() -> Any:
    """Return a model that was compiled and trained by Keras, with metrics."""
    model = mlp()
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    model.train_on_batch(np.ones((4, 6)), np.ones((4, 3)))
    return model


class Scale(layers.Layer):
    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(shape[-1],), initializer="ones", name="weight")
        self.built = True

    def call(self, x: Any) -> Any:
        return x * self.weight


def zoo() -> Any:
    """Return a model with layers that keep their weights in all sorts of places."""
    words = layers.Input((6,), dtype="int32")
    x = layers.Embedding(10, 4)(words)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    x = layers.TimeDistributed(layers.Dense(4))(x)
    x = layers.BatchNormalization()(x)
    x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 2)(x, x))
    inner = keras.Sequential(
        [layers.Input((6, 4)), layers.Dense(4), layers.Dropout(0.2), layers.GRU(3)]
    )
    shared = layers.Dense(3)
    x = layers.Normalization()(shared(shared(inner(Scale()(x)))))
    return keras.Model(words, [x, layers.Dense(2)(x)])


@pytest.fixture(scope="module", params=[mlp, trained, zoo])
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Two models of one kind."""
    return request.param(), request.param()


@pytest.mark.parametrize("ending", ENDINGS)
def test_all_weights(tmp_path: Path, pair: tuple[Any, Any], ending: str) -> None:
    saved, model = pair
    source = np.random.default_rng(len(ending))
    saved.set_weights([source.random(value.shape) for value in saved.get_weights()])
    assert not same_weights(model, saved)
    load_model(model, save(saved, tmp_path, ending))
    assert same_weights(model, saved)


def dense(*sizes: int) -> Any:
    return keras.Sequential([layers.Input((6,)), *map(layers.Dense, sizes)])


class TestErrors:
    """A load that fails leaves the model as it was."""

    def refused(self, path: Any, text: str, model: Any = None) -> None:
        model = model or mlp()
        before = weights(model) if model.built else []
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            load_model(model, path)
        assert text in str(caught.value)
        assert model.built == bool(before)
        assert not before or same_weights(model, before)

    @pytest.mark.parametrize("name", ["w", "w.pt", "w.H5"])
    def test_ending(self, tmp_path: Path, name: str) -> None:
        path = shutil.copy(save(mlp(), tmp_path, ".weights.h5"), tmp_path / name)
        self.refused(path, f"'{path}' ends with none of ['.h5', '.hdf5', '.keras']")

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_no_variables_yet(self, tmp_path: Path, ending: str) -> None:
        path = save(mlp(), tmp_path, ending)
        text = "has no variables before it knows"
        self.refused(path, text, keras.Sequential([layers.Dense(3)]))

    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("sizes", [(5, 4), (5, 3, 2)])
    def test_of_another_model(self, tmp_path: Path, ending: str, sizes: tuple[int, ...]) -> None:
        """The first layer fits; Keras fills what a longer model shares, and says nothing."""
        path = save(dense(*sizes), tmp_path, ending)
        self.refused(path, f"The weights file '{path}' is damaged, or of another model")
        more = "Layer count mismatch" if ending == ".h5" else "layers/dense_2/vars/0"
        self.refused(path, "shape" if sizes == (5, 4) else more)


class Block(layers.Layer):
    """Has equal layers inside."""

    def __init__(self, first: str = "first", second: str = "second") -> None:
        super().__init__()
        self.first, self.second = layers.Dense(6, name=first), layers.Dense(6, name=second)

    def build(self, shape: Any) -> None:
        for layer in (self.first, self.second):
            with tf.name_scope(layer.name):
                layer.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))


class TestFrozenLayers:
    """Weights are those of the same layers, whatever was frozen when they were saved."""

    def make(self, frozen: bool, seed: int, *names: str) -> tuple[Any, Block]:
        keras.utils.set_random_seed(seed)
        block = Block(*names)
        block.first.trainable = not frozen
        return keras.Sequential([layers.Input((6,)), block, layers.Dense(3)]), block

    def inside(self, model: Any, block: Block) -> list[Any]:
        own = [block.first, block.second, model.layers[-1]]
        return [np.array(one) for layer in own for one in layer.get_weights()]

    @pytest.mark.parametrize("frozen", [(True, False), (False, True), (True, True)])
    def test_files_of_fastnet(self, tmp_path: Path, frozen: tuple[bool, bool]) -> None:
        saved, other = (self.make(one, seed) for seed, one in enumerate(frozen))
        built = fastnet.build(lambda: saved[0], "adam", model_name="net")
        path = save_model(built, tmp_path)
        load_model(other[0], path)
        for one, two in zip(self.inside(*saved), self.inside(*other), strict=True):
            np.testing.assert_array_equal(one, two)
        # What is trainable is a matter of the program.
        assert [saved[1].first.trainable, other[1].first.trainable] == [not one for one in frozen]
        # Keras itself needs the same layers frozen.
        twin = self.make(frozen[0], 2)
        twin[0].load_weights(path)
        for one, two in zip(self.inside(*saved), self.inside(*twin), strict=True):
            np.testing.assert_array_equal(one, two)

    @pytest.mark.skipif(KERAS_3, reason="Keras 3 pairs layers in its files by class and order")
    @pytest.mark.parametrize("frozen", [(True, False), (False, True), (True, True)])
    def test_renamed_layers(self, tmp_path: Path, frozen: tuple[bool, bool]) -> None:
        saved, other = self.make(frozen[0], 0), self.make(frozen[1], 1, "query", "key")
        built = fastnet.build(lambda: saved[0], "adam", model_name="net")
        load_model(other[0], save_model(built, tmp_path))
        for one, two in zip(self.inside(*saved), self.inside(*other), strict=True):
            np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("frozen", [(True, False), (False, True), (True, True)])
    def test_files_of_keras(self, tmp_path: Path, ending: str, frozen: tuple[bool, bool]) -> None:
        saved, other = (self.make(one, seed) for seed, one in enumerate(frozen))
        load_model(other[0], save(saved[0], tmp_path, ending))
        for one, two in zip(self.inside(*saved), self.inside(*other), strict=True):
            np.testing.assert_array_equal(one, two)
        assert [saved[1].first.trainable, other[1].first.trainable] == [not one for one in frozen]

    @pytest.mark.skipif(not KERAS_3, reason="Keras 2 freezes layers only")
    def test_frozen_variables(self, tmp_path: Path) -> None:
        saved, other = (self.make(False, seed) for seed in range(2))
        saved[1].first.kernel.trainable = other[1].second.bias.trainable = False
        load_model(other[0], save(saved[0], tmp_path, ".h5"))
        for one, two in zip(self.inside(*saved), self.inside(*other), strict=True):
            np.testing.assert_array_equal(one, two)

    def test_names_that_do_not_tell_the_order(self, tmp_path: Path) -> None:
        """Files of Keras are refused if it may be another one, and else loaded with a warning."""

        saved, other = self.make(False, 0), self.make(False, 1, "query", "key")
        path = save(saved[0], tmp_path, ".h5")
        before = self.inside(*other)
        other[1].first.trainable = False
        with pytest.raises(ValueError, match=r"layer 'block.*' by what is trainable.*load_weights"):
            load_model(other[0], path)
        for one, two in zip(before, self.inside(*other), strict=True):
            np.testing.assert_array_equal(one, two)
        other[1].first.trainable = True
        with pytest.warns(UserWarning, match=r"order of the weights of layer 'block.*as if none"):
            load_model(other[0], path)
        for one, two in zip(self.inside(*saved), self.inside(*other), strict=True):
            np.testing.assert_array_equal(one, two)

    @pytest.mark.filterwarnings("ignore:The names in the file do not tell the order")
    @pytest.mark.parametrize("frozen", [(True, False), (False, True)])
    def test_other_trainable_flags_are_no_damage(
        self, tmp_path: Path, frozen: tuple[bool, bool]
    ) -> None:
        """Keras orders the weights of `inner`, of different shapes, by what is trainable."""

        def make(is_frozen: bool, *names: str) -> Any:
            inner = keras.Sequential(
                [layers.Input((6,)), *(layers.Dense(2 + len(name), name=name) for name in names)],
                name="inner",
            )
            inner.layers[0].trainable = not is_frozen
            return keras.Sequential([layers.Input((6,)), inner])

        path = save(make(frozen[0], "one", "three"), tmp_path, ".h5")
        with pytest.raises(
            ValueError, match=r"Sequential's weights.*have been trainable"
        ) as caught:
            load_model(make(frozen[1], "two", "seven"), path)
        assert "damaged" not in str(caught.value)
        assert path in str(caught.value)

    def test_optimizer_of_other_trainable_flags(self, tmp_path: Path) -> None:
        def build(frozen: bool) -> Any:
            model = mlp()
            model.layers[0].trainable = not frozen
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            optimizer.build(model.trainable_variables)
            return fastnet.build(lambda: model, lambda: optimizer, model_name="net")

        paths = [
            save_model(build(frozen), tmp_path / str(frozen), save_optimizer=True)
            for frozen in (False, True)
        ]
        for path, frozen in zip(paths, (True, False), strict=True):
            with pytest.raises(
                ValueError, match=r"because \['.*bias', '.*kernel'\] were trainable"
            ):
                load_model(build(frozen), path, load_optimizer=True)

    def test_optimizer(self, tmp_path: Path) -> None:
        """Its state is paired by the weights it is of, also if it was made in another order."""

        def state(model: Any, block: Block) -> list[Any]:
            values = optimizer_state(model.current_optimizer, model)["variables"]
            return [values[key] for key in sorted(values)]

        def build(frozen: bool, seed: int) -> tuple[Any, Block]:
            model, block = self.make(frozen, seed)
            return fastnet.build(lambda: model, "adam", model_name="net"), block

        saved, other = build(True, 0), build(False, 1)
        saved[1].first.trainable = True
        train(fastnet.Network(supervised(saved[0])), batches(2))
        path = save_model(saved[0], tmp_path, save_optimizer=True)
        load_model(other[0], path, load_optimizer=True)
        for one, two in zip(state(*saved), state(*other), strict=True):
            np.testing.assert_array_equal(one, two)
        for model, _ in (saved, other):
            train(fastnet.Network(supervised(model)), batches(2, seed=1))
        for one, two in zip(self.inside(*saved), self.inside(*other), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_a_lambda_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A Lambda layer's code lies in the file, and Keras would run it to make the model."""
    marker = str(tmp_path / "marker")

    def make(last: Any) -> Any:
        x = layers.Input((6,))
        y = layers.Dense(5)(x)
        return keras.Model(x, last(y))

    monkeypatch.setenv("MARKER", marker)
    hostile = make(
        layers.Lambda(lambda y: (open(__import__("os").environ["MARKER"], "w").close(), y)[1])
    )
    path = str(tmp_path / f"saved{ending}")
    hostile.save(path)
    os.remove(marker)
    # Keras itself does run it.
    keras.models.load_model(path, safe_mode=False)
    assert os.path.exists(marker)
    os.remove(marker)
    model = make(layers.Activation("tanh"))
    load_model(model, path)
    assert not os.path.exists(marker)
    assert same_weights(model, hostile)
