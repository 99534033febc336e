"""Python numbers of a batch that change between steps become inputs of a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    QUICK,
    batches,
    built,
    captured,
    cross_entropy,
    fallbacks,
    run_both,
)

Use = Callable[..., torch.Tensor]


def network_with(use: Use, *keys: str) -> Callable[[Any], TorchNetwork]:
    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))
        loss = LambdaOp(cross_entropy, ["pred", "y"], "loss")
        ops = [ModelOp(model, "x", "pred"), loss, LambdaOp(use, ["loss", *keys], "loss")]
        return TorchNetwork([*ops, UpdateOp(model, "loss")], compile=compile)

    return make


def with_numbers(sizes: Sequence[int] = (5,) * 6, **numbers: Sequence[Any]) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = [batches(1, size, place)[0] for place, size in enumerate(sizes)]
    for place, batch in enumerate(data):
        batch.update({key: values[place] for key, values in numbers.items()})
    return data


@pytest.mark.parametrize(
    "betas", [(0.1, 0.2, 0.3, 0.3, -0.0, 1e300), (1, 2, 3, 2**40, 0, -1)], ids=["float", "int"]
)
def test_number_that_changes_becomes_an_input(betas: Sequence[Any]) -> None:
    make = network_with(lambda loss, beta: loss * (1 + beta) / 2 - beta, "beta")
    network = run_both(make, with_numbers(beta=betas))
    assert captured(network) == 2
    assert network.traces[1].reason == (
        "'beta' of the batch has changed; it is an input of the program from now on"
    )


def test_two_numbers_and_the_batch_size() -> None:
    make = network_with(lambda loss, beta, tau: loss * beta / tau, "beta", "tau")
    rates = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    data = with_numbers((5, 5, 5, 7, 7, 9, 6, 5), beta=rates, tau=rates[::-1])
    network = run_both(make, data)
    assert captured(network) <= 4
    # No later batch needs another program.
    with network("train", 1):
        for batch in with_numbers((8, 9, 5), beta=(3.0, 2.0, 1.0), tau=(7.0, 8.0, 9.0)):
            network.run_step(batch)
    assert captured(network) <= 4


def test_number_of_another_class_is_another_signature() -> None:
    make = network_with(lambda loss, beta: loss * beta, "beta")
    network = run_both(make, with_numbers(beta=(0.5, 0.25, 2, 4, 0.75, True)))
    assert fallbacks(network) == []


def test_huge_integer_is_a_constant() -> None:
    make = network_with(lambda loss, beta: loss * (beta % 7 + 1), "beta")
    run_both(make, with_numbers(beta=(1, 2, 3, 2**60, 2**60 + 1, 5)))


def test_number_that_decides_is_compiled_for_each_value() -> None:
    make = network_with(
        lambda loss, warm: loss * 2 if warm > 0.5 else loss,
        "warm",
    )
    network = run_both(make, with_numbers(warm=(0.0, 1.0, 0.0, 1.0, 0.25, 0.75)))
    assert captured(network) == 4


def test_number_that_a_function_takes_as_no_tensor_is_compiled_for_each_value() -> None:
    def smoothed(loss: torch.Tensor, pred: torch.Tensor, y: Any, share: float) -> torch.Tensor:
        return functional.cross_entropy(pred, y, label_smoothing=share)

    make = network_with(smoothed, "pred", "y", "share")
    assert captured(run_both(make, with_numbers(share=(0.1, 0.2, 0.1, 0.2, 0.3, 0.3)))) == 3


def test_advice_for_a_number_of_a_batch_is_a_formula_of_tensors() -> None:
    def smoothed(loss: torch.Tensor, pred: torch.Tensor, share: Any) -> torch.Tensor:
        uniform = -pred.log_softmax(-1).mean()
        return (1 - share) * loss + share * uniform

    make = network_with(smoothed, "pred", "share")
    shares = [torch.tensor(0.1 * place) for place in range(6)]
    assert captured(run_both(make, with_numbers(share=shares))) == 1
    assert captured(run_both(make, with_numbers(share=list(map(float, shares))))) == 2


def test_every_step_is_verified_with_its_own_number() -> None:
    make = network_with(lambda loss, beta: loss * beta, "beta")
    options = CompileOptions(backend="eager", verify=1)
    network = run_both(make, with_numbers(beta=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)), compile=options)
    assert captured(network) == 2


def test_threads_with_different_numbers() -> None:
    def make() -> TorchNetwork:
        ops = [LambdaOp(lambda x, beta: x * beta, ["x", "beta"], "y")]
        return TorchNetwork(ops, compile=QUICK)

    network = make()
    x = torch.ones(4)

    def check(beta: float) -> bool:
        return all(
            torch.equal(network.run_step({"x": x, "beta": beta})["y"], x * beta) for _ in range(300)
        )

    with network("infer"), ThreadPoolExecutor(4) as pool:
        for beta in (1.5, 2.5, 3.5):
            network.run_step({"x": x, "beta": beta})
        assert all(pool.map(check, (0.1, 0.2, 0.3, 0.4)))
    assert captured(network) == 2


def test_each_phase_of_merging_takes_numbers_as_inputs() -> None:
    def make(compile: Any) -> TorchNetwork:
        network = network_with(lambda loss, beta: loss * beta, "beta")(compile)
        network.ops[-1].merge_grad = 2
        return network

    betas = [0.5 + 0.01 * place for place in range(16)]
    network = run_both(make, with_numbers((5,) * 16, beta=betas))
    # Two phases, each first with a constant.
    assert captured(network) <= 4


def test_one_integer_among_floats_leaves_the_others_an_input() -> None:
    make = network_with(lambda loss, beta: loss * beta, "beta")
    network = run_both(make, with_numbers((5,) * 7, beta=(0.5, 0.25, 0.125, 1, 0.3, 0.7, 0.9)))
    assert captured(network) == 3
    with network("train", 1):
        for batch in with_numbers((5,) * 5, beta=(0.1, 0.2, 0.3, 0.4, 0.5)):
            network.run_step(batch)
    assert captured(network) == 3


def test_class_that_only_python_sees_is_verified_and_compiled_for_each_value() -> None:
    make = network_with(
        lambda loss, beta: loss * 3 if isinstance(beta, float) else loss * beta, "beta"
    )
    network = run_both(make, with_numbers((5,) * 8, beta=(0.5, 0.25) * 4))
    assert fallbacks(network) == []


def test_size_that_cannot_be_open_is_not_blamed_on_a_number() -> None:
    make = network_with(lambda loss, x, beta: loss * beta * len(x), "x", "beta")
    sizes = (5, 6, 5, 6, 5, 6, 5, 6)
    network = run_both(make, with_numbers(sizes, beta=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)))
    assert fallbacks(network) == []
    assert captured(network) <= 4


def test_missing_number_of_a_defaultdict_is_a_missing_key() -> None:
    network = network_with(lambda loss, beta: loss * beta, "beta")(QUICK)
    data = with_numbers(beta=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    with network("train", 1):
        for batch in data:
            network.run_step(batch)
        batch = defaultdict(float, {key: data[0][key] for key in ("x", "y")})
        with pytest.raises(KeyError, match="beta"):
            network.run_step(batch)
    assert "beta" not in batch
