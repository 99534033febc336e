"""What `save_model` and `load_model` refuse of a model of any framework."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastnet
from fastnet.backend import load_model, save_model
from tests.network.programs import raising


class SavesOnlyWhatItCan:
    """Derive the tests of a framework from it, with its functions in the places of these."""

    build: Callable[..., Any]
    saved: Callable[..., tuple[Any, str]]
    mlp: Callable[[], Any]
    same_weights: Callable[[Any, Any], bool]

    def test_no_optimizer(self, tmp_path: Path) -> None:
        model = self.build(None)
        with raising(
            AssertionError,
            "save_model has save_optimizer=True, but model 'net' has no optimizer now.",
        ):
            save_model(model, tmp_path, save_optimizer=True)
        assert os.listdir(tmp_path) == []
        _, path = self.saved(tmp_path)
        with raising(
            AssertionError,
            "load_model has load_optimizer=True, but model 'net' has no optimizer now.",
        ):
            load_model(model, path, load_optimizer=True)

    def test_a_folder_instead_of_the_file_in_it(self, tmp_path: Path) -> None:
        model, path = self.saved(tmp_path)
        folder = str(tmp_path)
        text = f"There is no weights file '{folder}', but a folder of that name."
        hint = f" Did you mean '{path}'?"
        for call in (
            lambda given: load_model(model, given),
            lambda given: fastnet.build(self.mlp, None, weights_path=given),
        ):
            with raising(ValueError, text + hint):
                call(folder)
            for near in ("net", os.path.basename(path).replace("net", "nett")):
                other = str(tmp_path / near)
                with raising(ValueError, f"There is no weights file '{other}'.{hint}"):
                    call(other)
        save_model(model, tmp_path, "a")
        both = [path.replace("net.", "a."), path]
        with raising(ValueError, f"{text} Did you mean one of {both}?"):
            load_model(model, folder)
        (tmp_path / "none").mkdir()
        with raising(
            ValueError,
            f"There is no weights file '{tmp_path / 'none'}', but a folder of that name. Check the "
            "path.",
        ):
            load_model(model, tmp_path / "none")

    def test_a_model_that_was_not_built(self, tmp_path: Path) -> None:
        text = "takes a model from fastnet.build, but this Sequential was not made by it."
        with raising(AssertionError, f"save_model {text}"):
            save_model(self.mlp(), tmp_path)
        model, path = self.saved(tmp_path)
        with raising(AssertionError, f"load_model with load_optimizer=True {text}"):
            load_model(self.mlp(), path, load_optimizer=True)
        other = self.mlp()
        load_model(other, path)
        assert self.same_weights(model, other)

    def test_no_model(self, tmp_path: Path) -> None:
        with raising(
            ValueError,
            "Unrecognized model instance int: expected a torch.nn.Module or a Keras model.",
        ):
            save_model(3, tmp_path)
