"""Keras models and their optimizers, to files and back."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.backend import get_lr, load_model, save_model, set_lr
from fastnet.schedule import EpochScheduler
from tests.backend.saving import SavesOnlyWhatItCan
from tests.network.keras_models import (
    KERAS_3,
    KINDS,
    batches,
    keras,
    layers,
    line,
    mlp,
    same_weights,
    supervised,
    train,
    variables_of,
    weights,
)
from tests.network.programs import raising

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore:You are saving your model as")]

ENDING = ".weights.h5" if KERAS_3 else ".h5"
DECAY = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
OPTIMIZERS = {
    "adam": "adam",
    "rmsprop": "rmsprop",
    **{
        f"momentum {place}": lambda kind=kind: kind.SGD(0.1, momentum=0.9)
        for place, kind in enumerate(KINDS)
    },
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "a schedule": lambda: keras.optimizers.Adam(DECAY),
}
KIND = "Keras 3's " if KERAS_3 else "Keras 2's legacy "


def build(optimizer: Any = "adam", make: Any = mlp, **settings: Any) -> Any:
    return fastnet.build(make, optimizer, model_name="net", **settings)


def steps(network: Any, data: Any, eager: bool = False) -> None:
    train(network, data, eager=eager)


def saved(folder: Path, optimizer: Any = "adam", make: Any = mlp, **kwargs: Any) -> tuple[Any, str]:
    """Return a model that was trained, and the file that its weights are in."""
    model = build(optimizer, make)
    steps(fastnet.Network(supervised(model)), batches(3))
    return model, save_model(model, folder, **{"save_optimizer": True, **kwargs})


class TestRoundTrip:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @pytest.mark.parametrize("traced", [False, True], ids=["fresh", "traced"])
    def test_training_goes_on(self, tmp_path: Path, optimizer: str, traced: bool) -> None:
        data = batches(6)
        model, other = (build(OPTIMIZERS[optimizer]) for _ in range(2))
        network, resumed = (fastnet.Network(supervised(each)) for each in (model, other))
        if traced:
            steps(resumed, batches(2, seed=5))
        steps(network, data[:3])
        path = save_model(model, tmp_path, save_optimizer=True)
        before = weights(model)
        steps(network, data[3:])
        assert not same_weights(other, before)
        load_model(other, path, load_optimizer=True)
        assert same_weights(other, before)
        steps(resumed, data[3:])
        assert same_weights(model, other)
        assert get_lr(model) == get_lr(other)
        for one, two in zip(
            variables_of(model.current_optimizer),
            variables_of(other.current_optimizer),
            strict=True,
        ):
            np.testing.assert_array_equal(one.numpy(), two.numpy())

    def test_in_mixed_precision(self, tmp_path: Path) -> None:
        data = batches(6)
        model, other = (build("adam", mixed_precision=True) for _ in range(2))
        network, resumed = (fastnet.Network(supervised(each)) for each in (model, other))
        steps(network, data[:3])
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        steps(network, data[3:])
        steps(resumed, data[3:])
        assert same_weights(model, other)

    def test_of_the_scale_of_a_loss(self, tmp_path: Path) -> None:
        model, other = (build("adam", mixed_precision=True) for _ in range(2))
        network = fastnet.Network(supervised(model))
        steps(network, batches(2))
        broken = {**batches(1)[0], "x": tf.fill((8, 6), float("inf"))}
        steps(network, [broken])  # it is halved

        def scale(one: Any) -> float:
            return float(
                one.current_optimizer.scale_loss(1.0)
                if KERAS_3
                else one.current_optimizer.loss_scale
            )

        assert scale(model) < scale(other)
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        assert scale(other) == scale(model)

    def test_of_a_rate_that_was_set(self, tmp_path: Path) -> None:
        model, other = build(OPTIMIZERS["adamw"]), build(OPTIMIZERS["adamw"])
        set_lr(model, 0.5, weight_decay=0.25)
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        assert get_lr(other) == 0.5
        assert float(other.current_optimizer.weight_decay) == 0.25

    def test_weights_alone(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        other = build("sgd")
        before = [each.numpy() for each in variables_of(other.current_optimizer)]
        load_model(other, path)
        assert same_weights(model, other)
        after = [each.numpy() for each in variables_of(other.current_optimizer)]
        assert all(map(np.array_equal, before, after))

    def test_into_a_model_without_an_optimizer(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        other = build(None)
        load_model(other, path)
        assert same_weights(model, other)

    def test_as_weights_path_of_build(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        assert same_weights(model, build(weights_path=path))

    def test_saving_changes_nothing(self, tmp_path: Path) -> None:
        data = batches(6)
        model = build()
        other = build()
        other.set_weights(model.get_weights())
        network, twin = (fastnet.Network(supervised(each)) for each in (model, other))
        optimizer = model.current_optimizer
        steps(network, data[:3])
        steps(twin, data[:3])
        save_model(model, tmp_path, save_optimizer=True, save_architecture=True)
        assert model.current_optimizer is optimizer is model.optimizer
        steps(network, data[3:])
        steps(twin, data[3:])
        assert same_weights(model, other)
        assert len(network.traces) == 1


class TestFiles:
    def test_names(self, tmp_path: Path) -> None:
        model = build(make=line)
        assert save_model(model, tmp_path) == str(tmp_path / f"net{ENDING}")
        assert os.listdir(tmp_path) == [f"net{ENDING}"]

    def test_another_name(self, tmp_path: Path) -> None:
        path = save_model(build(make=line), tmp_path / "deep" / "er", "other", save_optimizer=True)
        assert path == str(tmp_path / "deep" / "er" / f"other{ENDING}")
        assert sorted(os.listdir(tmp_path / "deep" / "er")) == sorted(
            [f"other{ENDING}", "other_opt.npz"]
        )

    def test_the_architecture(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path, save_architecture=True)
        kept = tmp_path / ("net.keras" if KERAS_3 else "net")
        assert kept.is_file() if KERAS_3 else kept.is_dir()
        assert sorted(os.listdir(tmp_path)) == sorted(
            [os.path.basename(path), "net_opt.npz", kept.name]
        )
        again = keras.models.load_model(kept)
        assert same_weights(model, again)
        np.testing.assert_array_equal(again(tf.ones((2, 6))), model(tf.ones((2, 6))))

    def test_are_replaced(self, tmp_path: Path) -> None:
        saved(tmp_path, save_architecture=True)
        model, path = saved(tmp_path, save_architecture=True)
        other = build()
        load_model(other, path, load_optimizer=True)
        assert same_weights(model, other)
        assert len(os.listdir(tmp_path)) == 3

    def test_only_arrays_are_in_that_of_the_optimizer(self, tmp_path: Path) -> None:
        model, _ = saved(tmp_path)
        with np.load(tmp_path / "net_opt.npz", allow_pickle=False) as file:
            kinds = {file[name].dtype.kind for name in file.files}
            assert len(file.files) == len(variables_of(model.current_optimizer)) + 1
        assert kinds <= set("iufU")

    def test_failing_to_write_leaves_what_there_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, _ = saved(tmp_path)
        before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

        def fail(*args: Any, **kwargs: Any) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(np, "savez", fail)
        with pytest.raises(OSError, match="the disk is full") as caught:
            save_model(model, tmp_path, save_optimizer=True)
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == [
                f"Raised while the file '{tmp_path / 'net_opt.npz'}' was written."
            ]
        assert set(os.listdir(tmp_path)) == set(before)
        assert (tmp_path / "net_opt.npz").read_bytes() == before["net_opt.npz"]


class TestErrors(SavesOnlyWhatItCan):
    """Whatever is wrong, the model and its optimizer are left as they were."""

    build = staticmethod(build)
    saved = staticmethod(saved)
    mlp = staticmethod(mlp)
    same_weights = staticmethod(same_weights)

    def refused(
        self, path: str, kind: type[Exception], text: str, model: Any = None, optimizer: bool = True
    ) -> None:
        model = build() if model is None else model
        before = weights(model)
        memory = [each.numpy() for each in variables_of(model.current_optimizer)]
        with raising(kind, text):
            load_model(model, path, load_optimizer=optimizer)
        assert same_weights(model, before)
        after = [each.numpy() for each in variables_of(model.current_optimizer)]
        assert all(map(np.array_equal, memory, after))

    def test_no_weights(self, tmp_path: Path) -> None:
        path = str(tmp_path / f"none{ENDING}")
        text = f"There is no weights file '{path}'. Check the path."
        self.refused(path, ValueError, text)
        self.refused(path, ValueError, text, optimizer=False)

    def test_no_optimizer_file(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path, save_optimizer=False)
        self.refused(
            path,
            AssertionError,
            f"There is no optimizer file '{tmp_path / 'net_opt.npz'}' beside the weights. Leave "
            "load_optimizer out, or save the model with save_optimizer=True.",
        )

    def test_a_pickle(self, tmp_path: Path) -> None:
        """FastEstimator keeps the optimizer's state in one."""
        marker = tmp_path / "marker"

        class Hostile:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(marker),)

        _, path = saved(tmp_path, save_optimizer=False)
        beside = tmp_path / "net_opt.pkl"
        beside.write_bytes(pickle.dumps(Hostile()))
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{beside}' is a pickle, as FastEstimator writes it. To read one "
            "can execute anything that is in it, so fastnet does not. Load the weights alone, "
            "with load_optimizer=False, and save both anew with save_optimizer=True.",
        )
        assert not marker.exists()

    def test_a_pickle_among_the_arrays(self, tmp_path: Path) -> None:
        marker = tmp_path / "marker"

        class Hostile:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(marker),)

        _, path = saved(tmp_path)
        hostile = np.array([Hostile()], dtype=object)
        np.savez(tmp_path / "net_opt.npz", facts=hostile, **{"0": hostile})
        with pytest.raises(ValueError, match="is damaged, or was not written by fastnet"):
            load_model(build(), path, load_optimizer=True)
        assert not marker.exists()

    @pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", None])
    def test_a_damaged_optimizer_file(self, tmp_path: Path, content: bytes | None) -> None:
        _, path = saved(tmp_path)
        beside = tmp_path / "net_opt.npz"
        beside.write_bytes(beside.read_bytes()[:-300] if content is None else content)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            zipfile.ZipFile(beside)
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{beside}' is damaged, or was not written by fastnet: it cannot "
            f"be read ({caught.value!r}). Save it anew with save_model(model, save_dir, "
            "save_optimizer=True).",
        )

    @pytest.mark.parametrize("part", [0.3, 0.9])
    def test_damaged_weights(self, tmp_path: Path, part: float) -> None:
        _, path = saved(tmp_path)
        os.truncate(path, int(os.path.getsize(path) * part))
        model = build()
        before = weights(model)
        memory = [each.numpy() for each in variables_of(model.current_optimizer)]
        with pytest.raises(ValueError, match="is damaged, or of another model than Sequential"):
            load_model(model, path, load_optimizer=True)
        assert same_weights(model, before)
        after = [each.numpy() for each in variables_of(model.current_optimizer)]
        assert all(map(np.array_equal, memory, after))

    def test_another_optimizer(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path)
        self.refused(
            path,
            ValueError,
            f"The optimizer file '{tmp_path / 'net_opt.npz'}' is not of the model's optimizer, "
            f"{KIND}SGD: it is of {KIND}Adam. Leave load_optimizer out, or give the model the "
            "optimizer that was saved.",
            build("sgd"),
        )

    def test_an_optimizer_of_another_model(self, tmp_path: Path) -> None:
        def wide() -> Any:
            return keras.Sequential([layers.Input((6,)), layers.Dense(3)])

        _, path = saved(tmp_path)
        text = f"The optimizer file '{tmp_path / 'net_opt.npz'}' is not of the model's optimizer, "
        model = build(make=wide)
        with pytest.raises(ValueError, match="it has arrays of the shapes") as caught:
            load_model(model, path, load_optimizer=True)
        assert str(caught.value).startswith(f"{text}{KIND}Adam: it has arrays of the shapes [")
        assert "(6, 3)" in str(caught.value).partition(" where the model's are ")[2]

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"learning_rate": "abc"}, "its learning_rate is 'abc', where the model's is "),
            ({"learning_rate": -1}, "its learning_rate is -1, where the model's is "),
            ({"learning_rate": float("inf")}, "its learning_rate is inf, where the model's is "),
            ({"learning_rate": None}, "its learning_rate is None, where the model's is "),
            ({"weight_decay": True}, "its weight_decay is True, where the model's is None"),
            ({"learning_rate": ...}, "it lacks the learning_rate"),
            ({"weight_decay": ...}, "it lacks the weight_decay"),
        ],
    )
    def test_facts_that_cannot_be(self, tmp_path: Path, change: Any, told: str) -> None:
        _, path = saved(tmp_path)
        rewrite(tmp_path / "net_opt.npz", change, {})
        self.refused_by(path, f"is not of the model's optimizer, {KIND}Adam: {told}")

    @pytest.mark.parametrize("value", [np.array(-1), np.array("abc"), np.array(1.5)])
    def test_steps_that_cannot_be(self, tmp_path: Path, value: Any) -> None:
        _, path = saved(tmp_path)
        rewrite(tmp_path / "net_opt.npz", {}, {"0": value})
        self.refused_by(path, f"is not of the model's optimizer, {KIND}Adam: its array 0 is ")

    def refused_by(self, path: str, text: str) -> None:
        model = build()
        before, memory = weights(model), [one.numpy() for one in variables_of(model.optimizer)]
        rate = get_lr(model)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            load_model(model, path, load_optimizer=True)
        assert text in str(caught.value)
        assert same_weights(model, before)
        assert all(
            map(np.array_equal, memory, [one.numpy() for one in variables_of(model.optimizer)])
        )
        assert get_lr(model) == rate
        steps(fastnet.Network(supervised(model)), batches(1))

    @pytest.mark.parametrize("count", [300_000_000, 1 << 60])
    def test_sizes_that_a_file_does_not_have(self, tmp_path: Path, count: int) -> None:
        _, path = saved(tmp_path)
        beside = tmp_path / "net_opt.npz"
        with zipfile.ZipFile(beside) as archive:
            entries = {one.filename: archive.read(one) for one in archive.infolist()}
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "<f4", "fortran_order": False, "shape": (count,)}
        )
        entries["1.npy"] = head.getvalue() + bytes(16)
        with zipfile.ZipFile(beside, "w") as archive:
            for name, entry in entries.items():
                archive.writestr(name, entry)
        model = build()
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=f"claims {4 * count} bytes, but has 16"):
                load_model(model, path, load_optimizer=True)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()

    def test_an_archive_that_blows_up(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path)
        np.savez_compressed(tmp_path / "net_opt.npz", facts=np.zeros(10_000_000, "uint8"))
        self.refused_by(path, "its 'entries' claims 10000")


def rewrite(path: Path, facts: Any, arrays: Any) -> None:
    """Write an optimizer file anew, with other facts in it and other arrays."""
    with np.load(path, allow_pickle=False) as file:
        held = {name: file[name] for name in file.files}
    told = json.loads(str(held["facts"]))
    told = {name: value for name, value in {**told, **facts}.items() if value is not ...}
    np.savez(path, **{**held, **arrays, "facts": np.array(json.dumps(told))})


class TestScheduled:
    """Each optimizer of a schedule gets its own state, whichever is in force here and there."""

    def make(self) -> Any:
        return build(EpochScheduler({1: "adam", 3: OPTIMIZERS["momentum 0"], 5: None}))

    @pytest.mark.parametrize("last", [1, 3])
    def test_all_of_them(self, tmp_path: Path, last: int) -> None:
        model = self.make()
        network = fastnet.Network(supervised(model))
        for epoch in (1, 3, last):
            with network(mode="train", epoch=epoch, eager=True):
                for batch in batches(2, seed=epoch):
                    network.run_step(batch)
        path = save_model(model, tmp_path, save_optimizer=True)
        for first in (1, 3):
            other = self.make()
            load_model(other, path, load_optimizer=True)
            with fastnet.Network(supervised(other))(mode="train", epoch=first, eager=True):
                pass
            pairs = zip(
                *(one.optimizer.get_all_values()[:2] for one in (model, other)), strict=True
            )
            for one, two in pairs:
                values = [[each.numpy() for each in variables_of(every)] for every in (one, two)]
                assert any(np.any(each) for each in values[0])
                assert all(map(np.array_equal, *values))

    def test_into_another_schedule(self, tmp_path: Path) -> None:
        path = save_model(self.make(), tmp_path, save_optimizer=True)
        other = build(EpochScheduler({1: "adam", 2: "sgd", 3: "sgd"}))
        with pytest.raises(ValueError, match="of a schedule of 2 optimizers, where the model's"):
            load_model(other, path, load_optimizer=True)
