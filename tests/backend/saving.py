"""What `save_model` and `load_model` refuse of a model of any framework."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastnet
from fastnet.backend import load_model, save_model


class SavesOnlyWhatItCan:
    """Derive the tests of a framework from it, with its functions in the places of these."""

    build: Callable[..., Any]
    saved: Callable[..., tuple[Any, str]]
    mlp: Callable[[], Any]
    same_weights: Callable[[Any, Any], bool]

    def test_no_optimizer(self, tmp_path: Path) -> None:
        model = self.build(None)
        with pytest.raises(AssertionError, match="save_optimizer=True, but model 'net' has no opt"):
            save_model(model, tmp_path, save_optimizer=True)
        assert os.listdir(tmp_path) == []
        _, path = self.saved(tmp_path)
        with pytest.raises(AssertionError, match="load_optimizer=True, but model 'net' has no opt"):
            load_model(model, path, load_optimizer=True)

    def test_suggestions_for_a_missing_file(self, tmp_path: Path) -> None:
        model, path = self.saved(tmp_path)
        near = os.path.basename(path).replace("net", "nett")
        for given in (tmp_path, tmp_path / "net", tmp_path / near):
            for call in (
                lambda given: load_model(model, given),
                lambda given: fastnet.build(self.mlp, None, weights_path=given),
            ):
                with pytest.raises(ValueError, match="There is no weights file") as caught:
                    call(str(given))
                assert f"Did you mean '{path}'?" in str(caught.value)
        (tmp_path / "none").mkdir()
        with pytest.raises(ValueError, match=r"but a folder of that name\. Check the path"):
            load_model(model, tmp_path / "none")

    def test_a_model_that_was_not_built(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match=r"save_model takes a model from fastnet.build"):
            save_model(self.mlp(), tmp_path)
        model, path = self.saved(tmp_path)
        with pytest.raises(AssertionError, match=r"load_optimizer=True takes a model from fastnet"):
            load_model(self.mlp(), path, load_optimizer=True)
        other = self.mlp()
        load_model(other, path)
        assert self.same_weights(model, other)

    def test_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="Unrecognized model instance int"):
            save_model(3, tmp_path)
