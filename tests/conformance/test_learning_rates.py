"""Learning rates and weight decays, read and set while a program goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import torch

from fastnet.backend import get_lr, set_lr
from tests.conformance.agreement import assert_same
from tests.conformance.frameworks import Framework, make_layers
from tests.conformance.oracle import Line, make_batches
from tests.conformance.test_training import regression

LAYERS = make_layers(3, 2)
RATES = {
    "sgd": (0.01, 0.01),
    "adam": (0.001, 0.001),
    "rmsprop": (0.01, 0.001),
    "adadelta": (1.0, 0.001),
}


def decaying(fw: Framework, rate: float = 0.5, decay: float = 0.25) -> Any:
    if fw.target == "torch":
        return lambda parameters: torch.optim.SGD(parameters, rate, weight_decay=decay)
    return lambda: tf.keras.optimizers.SGD(rate, weight_decay=decay)


def build(fw: Framework, optimizer: Any) -> Any:
    return fw.build(LAYERS, optimizer, name="net")


@pytest.mark.parametrize("name", RATES)
def test_of_a_name(fw: Framework, name: str) -> None:
    rate = get_lr(build(fw, name))
    assert type(rate) is float
    assert rate == pytest.approx(RATES[name][fw.target == "tf"])


def test_counts_from_the_next_step_on(fw: Framework) -> None:
    """A decay is taken off with the update: w - rate * (gradient + decay * w)."""
    model, line = build(fw, decaying(fw)), Line(*LAYERS[0])
    network = fw.network(regression(model))
    with fw.opened(network, "train"):
        for batch, rate, decay in zip(
            make_batches(4), (0.5, np.float64(0.25), 0, 2.0), (0.25, 0.5, 0.5, 0.0), strict=True
        ):
            set_lr(model, rate, weight_decay=decay)
            assert get_lr(model) == rate
            network.run_step(fw.tensors(batch))
            by_kernel, by_bias = line.gradients(batch)
            line.descend((by_kernel + decay * line.kernel, by_bias + decay * line.bias), rate)
            assert_same(fw.weights(model), line.weights)
    assert len(getattr(network, "traces", [])) == (fw.name == "tf-static")


def test_what_cannot_be_set(fw: Framework) -> None:
    model = build(fw, "adam" if fw.target == "tf" else torch.optim.Rprop)
    with pytest.raises(ValueError, match=r"'net'.*(Adam|Rprop)"):
        set_lr(model, 0.1, weight_decay=0.1)
    assert get_lr(model) == pytest.approx(0.01 if fw.target == "torch" else 0.001)
    for call in (get_lr, lambda model: set_lr(model, 0.1)):
        with pytest.raises(ValueError, match="'net' has no optimizer"):
            call(build(fw, None))
        with pytest.raises(AssertionError, match=r"fastnet\.build"):
            call(fw.make_model(LAYERS))
        with pytest.raises(ValueError, match="int"):
            call(3)


class TestGroupsOfTorch:
    def build(self) -> Any:
        def optimizer(parameters: Any) -> Any:
            first, second = parameters
            return torch.optim.AdamW(
                [{"params": [first]}, {"params": [second], "lr": 0.25, "weight_decay": 0.5}],
                torch.tensor(0.5),
            )

        from tests.conformance.frameworks import FRAMEWORKS

        return build(FRAMEWORKS["torch"], optimizer)

    def test_the_first_is_read_and_all_are_set(self) -> None:
        model = self.build()
        groups = model.current_optimizer.param_groups
        rate = groups[0]["lr"]
        assert get_lr(model) == 0.5
        set_lr(model, 2)
        assert [float(group["lr"]) for group in groups] == [2.0, 2.0]
        # a tensor, which a captured step may read, stays the same
        assert groups[0]["lr"] is rate
        assert [group["weight_decay"] for group in groups] == [0.01, 0.5]
        set_lr(model, 0.5, weight_decay=0.125)
        assert [group["weight_decay"] for group in groups] == [0.125, 0.125]
