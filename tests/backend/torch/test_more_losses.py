"""The losses on torch tensors that have no class of their own in torch, and what goes with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastnet import backend
from tests.backend.loss_oracles import CASES, DICE, IDS, data, dice_score, masks, slopes

TYPES = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("name", "oracle", "settings", "kind"), CASES, ids=IDS)
def test_values_and_slopes(name: str, oracle: Any, settings: Any, kind: str, dtype: str) -> None:
    true, pred = data(kind)
    tensor = torch.tensor(pred, dtype=getattr(torch, dtype), requires_grad=True)
    loss = getattr(backend, name)(torch.tensor(true).to(tensor.dtype), tensor, **settings)
    assert loss.dtype is tensor.dtype
    wanted = oracle(true, pred, **settings)
    assert tuple(loss.shape) == wanted.shape
    near = TYPES[dtype]
    np.testing.assert_allclose(loss.detach().float().numpy(), wanted, rtol=near, atol=near)
    (slope,) = torch.autograd.grad(loss.sum(), tensor)
    by_hand = slopes(lambda near: oracle(true, near, **settings), pred)
    np.testing.assert_allclose(slope.float().numpy(), by_hand, rtol=near, atol=max(near, 1e-4))


@pytest.mark.parametrize(("name", "oracle", "settings", "kind"), CASES, ids=IDS)
def test_whole_truth(name: str, oracle: Any, settings: Any, kind: str) -> None:
    """A truth of integers is as good as one of floats, and gradients flow."""
    true, pred = data(kind)
    tensor = torch.tensor(pred, dtype=torch.float32, requires_grad=True)
    loss = getattr(backend, name)(torch.tensor(true).long(), tensor, **settings)
    wanted = oracle(true, pred, **settings)
    np.testing.assert_allclose(loss.detach().numpy(), wanted, rtol=2e-5, atol=2e-5)
    loss.sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("settings", DICE, ids=lambda one: "-".join(one) or "plain")
def test_dice(settings: Any, dtype: str) -> None:
    pred, true = masks()
    tensor = torch.tensor(pred, dtype=getattr(torch, dtype), requires_grad=True)
    score = backend.dice_score(tensor, torch.tensor(true), **settings)
    assert score.dtype is tensor.dtype
    wanted = dice_score(pred, true, **settings)
    near = TYPES[dtype]
    np.testing.assert_allclose(score.detach().float().numpy(), wanted, rtol=near, atol=near / 10)
    if "threshold" not in settings:
        (slope,) = torch.autograd.grad(score.sum(), tensor)
        by_hand = slopes(lambda near: dice_score(near, true, **settings), pred)
        np.testing.assert_allclose(slope.float().numpy(), by_hand, rtol=near, atol=near)


def test_l2_regularization() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].bias.requires_grad_(False)
    trained = [one for one in model.parameters() if one.requires_grad]
    assert len(trained) == 3
    for settings, beta in (({}, 0.01), ({"beta": 0.5}, 0.5)):
        loss = backend.l2_regularization(model, **settings)
        wanted = beta * sum((one.detach().numpy() ** 2).sum() / 2 for one in trained)
        np.testing.assert_allclose(loss.item(), wanted, rtol=1e-6)
        for one, slope in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            torch.testing.assert_close(slope, beta * one.detach())
    model.requires_grad_(False)
    assert backend.l2_regularization(model) == 0


class TestWatch:
    def test_one_without_gradients(self) -> None:
        plain = torch.tensor([1.0, 2.0])
        watched = backend.watch(plain)
        assert not plain.requires_grad
        assert backend.get_gradient(watched**2, watched).tolist() == [2.0, 4.0]

    def test_one_in_a_graph_stays_in_it(self) -> None:
        leaf = torch.tensor([1.0, 2.0], requires_grad=True)
        inside = leaf * 3
        assert backend.watch(inside) is inside
        assert backend.get_gradient(inside**2, leaf).tolist() == [18.0, 36.0]

    def test_an_array(self) -> None:
        with pytest.raises(ValueError, match="ndarray"):
            backend.watch(np.ones(2))


class TestErrors:
    @pytest.mark.parametrize("name", ["huber", "smooth_l1_loss"])
    @pytest.mark.parametrize("beta", [0, -1.0])
    def test_beta(self, name: str, beta: float) -> None:
        with pytest.raises(ValueError, match=f"beta of {name}.*{beta!r}"):
            getattr(backend, name)(torch.ones(1, 2), torch.ones(1, 2), beta)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("gamma", -1),
            ("gamma", "x"),
            ("alpha", 2),
            ("shape_reduction", "x"),
            ("sample_reduction", 3),
        ],
    )
    def test_focal(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"{name}.*{value!r}"):
            backend.focal_loss(torch.ones(1, 2), torch.ones(1, 2), **{name: value})
