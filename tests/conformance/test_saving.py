"""Weights and optimizers in files: `save_model` and `load_model` in both frameworks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastnet import load_checkpoint, save_checkpoint
from fastnet.backend import load_model, save_model, set_lr
from fastnet.schedule import EpochScheduler
from tests.conformance.frameworks import Framework, make_layers, tf
from tests.conformance.oracle import make_batches
from tests.conformance.test_training import regression

pytestmark = [
    pytest.mark.parametrize("fw", ["torch", "tf-static"], indirect=True),
    pytest.mark.filterwarnings("ignore:You are saving your model as"),
]

LAYERS = make_layers(3, 4, 2)


def adamw(fw: Framework) -> Any:
    if fw.target == "torch":
        return lambda parameters: torch.optim.AdamW(parameters, 0.05, weight_decay=0.1)
    return lambda: tf.keras.optimizers.AdamW(0.05, weight_decay=0.1)


OPTIMIZERS = {
    "adam": lambda fw: "adam",
    "rmsprop": lambda fw: "rmsprop",
    "momentum": lambda fw: fw.sgd(0.1, momentum=0.9),
    "adamw": adamw,
}


def made(fw: Framework, optimizer: Any = "adam", seed: int = 0, **settings: Any) -> Any:
    return fw.build(make_layers(3, 4, 2, seed=seed), optimizer, name="net", **settings)


def trained(fw: Framework, model: Any, steps: int = 3, seed: int = 0) -> Any:
    fw.steps(fw.network(regression(model)), make_batches(steps, seed=seed), "train")
    return model


def same(fw: Framework, *models: Any) -> bool:
    return all(map(np.array_equal, *map(fw.weights, models)))


class TestRoundTrip:
    @pytest.mark.parametrize(
        ("optimizer", "used"), [*((name, False) for name in OPTIMIZERS), ("adam", True)]
    )
    def test_training_goes_on(
        self, fw: Framework, tmp_path: Path, optimizer: str, used: bool
    ) -> None:
        model, other = (made(fw, OPTIMIZERS[optimizer](fw), seed) for seed in (0, 1))
        resumed = fw.network(regression(other))
        if used:
            fw.steps(resumed, make_batches(2, seed=5), "train")
        trained(fw, model)
        path = save_model(model, tmp_path, save_optimizer=True)
        assert not same(fw, model, other)
        load_model(other, path, load_optimizer=True)
        assert same(fw, model, other)
        trained(fw, model, seed=1)
        fw.steps(resumed, make_batches(3, seed=1), "train")
        assert same(fw, model, other)

    def test_a_rate_that_was_set(self, fw: Framework, tmp_path: Path) -> None:
        model, other = made(fw, adamw(fw)), made(fw, adamw(fw))
        set_lr(model, 0.5, weight_decay=0.25)
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        assert fw.rate(other) == 0.5
        optimizer = other.current_optimizer
        groups = getattr(optimizer, "param_groups", None)
        assert float(groups[0]["weight_decay"] if groups else optimizer.weight_decay) == 0.25

    def test_weights_alone(self, fw: Framework, tmp_path: Path) -> None:
        model = trained(fw, made(fw))
        path = save_model(model, tmp_path, save_optimizer=True)
        other, fresh = made(fw, seed=1), made(fw)
        load_model(other, Path(path))
        assert same(fw, model, other)
        load_model(fresh, path)
        # with an optimizer that remembers nothing
        assert same(fw, trained(fw, other), trained(fw, fresh))
        assert not same(fw, trained(fw, model), other)
        assert same(fw, made(fw, seed=2, weights_path=path), made(fw, weights_path=path))

    @pytest.mark.parametrize("last", [1, 3])
    def test_each_optimizer_of_a_schedule(self, fw: Framework, tmp_path: Path, last: int) -> None:
        def scheduled(seed: int) -> Any:
            return made(
                fw, EpochScheduler({1: "adam", 3: fw.sgd(0.1, momentum=0.9), 5: None}), seed
            )

        model, other = scheduled(0), scheduled(1)
        network, resumed = (fw.network(regression(one)) for one in (model, other))
        for epoch in (1, 3, last):
            fw.steps(network, make_batches(2, seed=epoch), "train", epoch)
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        for epoch in (1, 3):
            for each in (network, resumed):
                fw.steps(each, make_batches(2, seed=7), "train", epoch)
            assert same(fw, model, other)
        path = save_model(model, tmp_path, save_optimizer=True)
        shorter = made(fw, EpochScheduler({1: "adam", 2: "sgd", 3: "sgd"}))
        with pytest.raises(ValueError, match="of a schedule of 2 optimizers, where the model's"):
            load_model(shorter, path, load_optimizer=True)


class TestErrors:
    """A load that fails leaves the model and its optimizer as they were."""

    def saved(self, fw: Framework, folder: Path, **settings: Any) -> str:
        return save_model(trained(fw, made(fw)), folder, **{"save_optimizer": True, **settings})

    def refused(
        self, fw: Framework, path: Any, kind: type[Exception], *parts: str, model: Any = None
    ) -> None:
        model = model or made(fw, seed=1)
        before, rate = fw.weights(model), fw.rate(model)
        with pytest.raises(kind) as caught:
            load_model(model, path, load_optimizer=True)
        assert not [part for part in parts if part not in str(caught.value)]
        assert all(map(np.array_equal, fw.weights(model), before))
        assert fw.rate(model) == rate

    def test_missing_files(self, fw: Framework, tmp_path: Path) -> None:
        path = self.saved(fw, tmp_path, save_optimizer=False)
        self.refused(fw, path, AssertionError, "There is no optimizer file", "net_opt")
        near = os.path.basename(path).replace("net", "nett")
        for given in (tmp_path / near, tmp_path / "net"):
            self.refused(fw, str(given), ValueError, "no weights file", f"Did you mean '{path}'?")
            with pytest.raises(ValueError, match="no weights file"):
                made(fw, None, weights_path=str(given))
        (tmp_path / "none").mkdir()
        self.refused(fw, tmp_path / "none", ValueError, "is a folder")
        self.refused(fw, 3, ValueError, "path of a weights file must be a string", "int")

    def test_no_optimizer(self, fw: Framework, tmp_path: Path) -> None:
        model = made(fw, None)
        with pytest.raises(AssertionError, match="save_optimizer=True, but model 'net' has no opt"):
            save_model(model, tmp_path, save_optimizer=True)
        assert os.listdir(tmp_path) == []
        path = self.saved(fw, tmp_path)
        with pytest.raises(AssertionError, match="load_optimizer=True, but model 'net' has no opt"):
            load_model(model, path, load_optimizer=True)

    def test_a_model_that_was_not_built(self, fw: Framework, tmp_path: Path) -> None:
        plain = fw.make_model(LAYERS)
        with pytest.raises(AssertionError, match=r"save_model takes a model from fastnet.build"):
            save_model(plain, tmp_path)
        path = self.saved(fw, tmp_path)
        with pytest.raises(AssertionError, match=r"load_optimizer=True takes a model from fastnet"):
            load_model(plain, path, load_optimizer=True)
        load_model(plain, path)
        assert same(fw, plain, made(fw, weights_path=path))
        with pytest.raises(ValueError, match="Unrecognized model instance int"):
            save_model(3, tmp_path)

    def test_another_optimizer(self, fw: Framework, tmp_path: Path) -> None:
        path = self.saved(fw, tmp_path)
        sgd = made(fw, "sgd", seed=1)
        self.refused(fw, path, ValueError, "does not fit the optimizer", "SGD", "Adam", model=sgd)
        wide = fw.build(make_layers(3, 5, 2), "adam", name="net")
        self.refused(fw, path, ValueError, "net", model=wide)
        save_model(trained(fw, wide), tmp_path / "wide", save_optimizer=True)
        (beside,) = (tmp_path / "wide").glob("net_opt*")
        os.replace(beside, tmp_path / beside.name)
        self.refused(fw, path, ValueError, "does not fit the optimizer", "Adam", "shape")

    @pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", None])
    def test_damaged(self, fw: Framework, tmp_path: Path, content: bytes | None) -> None:
        path = self.saved(fw, tmp_path)
        (beside,) = tmp_path.glob("net_opt*")
        good = beside.read_bytes()
        beside.write_bytes(good[:-300] if content is None else content)
        self.refused(fw, path, ValueError, f"'{beside}' is damaged")
        beside.write_bytes(good)
        Path(path).write_bytes(Path(path).read_bytes()[:-300] if content is None else content)
        reason = "it is empty" if content == b"" else "damaged"
        self.refused(fw, path, ValueError, path, reason)

    def test_a_checkpoint_for_weights(self, fw: Framework, tmp_path: Path) -> None:
        """Neither can be loaded as the other, and the error names the function that can."""
        path, model = self.saved(fw, tmp_path), made(fw, seed=1)
        network = fw.network(regression(model))
        with pytest.raises(ValueError, match=r"is a file of .* load_model reads"):
            load_checkpoint(path, network)
        save_checkpoint(path, network)
        text = "is a checkpoint, which load_checkpoint reads"
        self.refused(fw, path, ValueError, text, model=model)

    @pytest.mark.parametrize("of_weights", [True, False])
    def test_flipped_bytes_never_change_values(
        self, fw: Framework, tmp_path: Path, of_weights: bool
    ) -> None:
        """torch.load itself does not compare the checksums of arrays."""
        model = trained(fw, made(fw))
        path = save_model(model, tmp_path, save_optimizer=True)
        (beside,) = tmp_path.glob("net_opt*")
        file = Path(path) if of_weights else beside
        good, refused, source = file.read_bytes(), 0, np.random.default_rng(0)
        other = made(fw, seed=1)
        for place in source.integers(len(good), size=40):
            bad = bytearray(good)
            bad[place] ^= 1 << int(source.integers(8))
            file.write_bytes(bad)
            try:
                load_model(other, path, load_optimizer=True)
            except ValueError:
                refused += 1
                continue
            # Nothing reads the padding of a file, or the dates in it.
            assert same(fw, model, other)
        assert refused
