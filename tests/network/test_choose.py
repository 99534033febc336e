"""Options of `Network` that only the networks of some frameworks take."""

from __future__ import annotations

import pydoc
import re
from typing import Any

import pytest

import fastnet
from fastnet.op.tensorop.model import ModelOp
from tests.network.programs import raising

OF_TORCH = {"device": "cpu", "keep_on_device": False, "returns": "device"}


@pytest.fixture
def ops() -> list[Any]:
    from tests.network.keras_models import mlp

    return [ModelOp(fastnet.build(mlp, None), "x", "y")]


def test_the_factory_says_where_its_methods_are() -> None:
    found = re.search(r"its methods take, `help\((.*?)\)` tells", str(fastnet.Network.__doc__))
    assert found is not None
    told = pydoc.plain(pydoc.render_doc(found[1]))
    for method in ("run_step", "transform", "iter_transform", "explain", "get_loss_keys"):
        assert f" {method}(" in told


@pytest.mark.tf
class TestOptionsOfTorch:
    @pytest.mark.parametrize(
        "names", [["device"], ["keep_on_device"], ["returns"], ["device", "returns"], [*OF_TORCH]]
    )
    def test_are_refused_by_another_framework(self, ops: list[Any], names: list[str]) -> None:
        with raising(
            TypeError,
            f"Network got {names}, which are for torch, but these ops run in tf. Leave them out.",
        ):
            fastnet.Network(ops, **{name: OF_TORCH[name] for name in names})

    def test_do_no_harm_where_they_change_nothing(self, ops: list[Any]) -> None:
        made = fastnet.Network(ops, device=None, keep_on_device=True, returns="cpu")
        assert type(made) is fastnet.network.TFNetwork


@pytest.mark.tf
def test_the_fourth_argument_is_the_axes(ops: list[Any]) -> None:
    made = fastnet.Network(ops, None, None, {"x": (0, 1)})
    assert type(made) is fastnet.network.TFNetwork
    with raising(
        TypeError,
        "open_axes holds 'no axis'. Give the number of an axis, several such numbers, or a dict "
        "with the keys of a batch and these.",
    ):
        fastnet.Network(ops, None, None, "no axis")
