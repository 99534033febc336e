"""The functions of the backend on tensors of each framework, compared with FastEstimator's.

Results are equal but for a rounding. Values for every dtype and axis are compared with numpy in
tests/backend, and losses with all their settings and functions of models as ops, in test_ops.py
and test_training.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.fast import test_backend as plain
from tests.fast.test_backend import VALUES
from tests.integrations.sides import Sides
from tests.integrations.tf_sides import MARKS, tf

pytestmark = MARKS

# One rounding of float32, up in one package and down in the other.
ROUNDING = 2.4e-7

MAKERS: dict[str, Callable[[Any], Any]] = {
    "torch": torch.from_numpy,
    "tf": tf.convert_to_tensor,
    "numpy": lambda array: array,
}
# FastEstimator flips lists of axes only, and the lengths of a shape are tensors in TensorFlow.
OTHERWISE = {"flip", "get_shape"}
LOSSES = ("crossentropy", "hinge", "huber", "_loss", "mean_squared_error")
ALL = pytest.mark.parametrize("framework", list(MAKERS))


@ALL
@pytest.mark.parametrize("name", sorted(VALUES.keys() - OTHERWISE))
def test_plain_calls(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, name: str, framework: str
) -> None:
    if framework == "numpy" and name.endswith(LOSSES):
        pytest.skip("FastEstimator computes it of tensors only")

    def program(lib: Any) -> Any:
        monkeypatch.setattr(plain, "backend", lib.backend)
        return VALUES[name][0](MAKERS[framework])

    sides.agree(program, ROUNDING)


@ALL
def test_conversions(sides: Sides, framework: str) -> None:
    t = MAKERS[framework]

    def program(lib: Any) -> Any:
        # FastEstimator writes into the nest.
        nest = {
            "a": t(np.ones((2, 3), "float32")),
            "b": [t(np.zeros(2, "float32")), (3, 4.5)],
            "c": "text",
            "d": None,
        }
        shapes = [
            str(lib.backend.to_shape({"a": nest["a"], "b": nest["b"][:1]}, **settings))
            for settings in ({}, {"add_batch": True}, {"exact_shape": False})
        ]
        told = [str(lib.backend.to_type({"a": nest["a"], "b": [(nest["a"],)]})), shapes]
        for target in ("torch", "tf", "np"):
            nest = lib.backend.to_tensor(nest, target)
            told.append([type(one).__name__ for one in (nest["a"], nest["b"][0], *nest["b"][1])])
        return told, nest

    sides.agree(program)
