"""Models that `build` spreads over processes or devices: what it decides, and what it refuses.

That they train is tested with processes of their own, in tests/network/torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import fastnet
from fastnet.network import TorchNetwork
from tests.network.programs import (
    batches,
    line,
    mlp,
    run_all,
    supervised,
)
from tests.ranks import ranks


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FASTNET_DEVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("given", ["DDP", True])
def test_no_engine(given: Any) -> None:
    with pytest.raises(ValueError, match=f"parallel={given!r} of model 'm'.*'auto', 'ddp', 'fsdp'"):
        fastnet.build(line, None, model_name="m", parallel=given)


@pytest.mark.parametrize(("parallel", "option"), [(None, "static_graph"), ("auto", "lr")])
def test_unknown_options(parallel: Any, option: str) -> None:
    with pytest.raises(TypeError, match=rf"^build of model 'm' got \['{option}'\], which"):
        fastnet.build(line, None, model_name="m", parallel=parallel, **{option: 1})


@pytest.mark.parametrize("parallel", ["auto", "ddp", "fsdp"])
def test_no_group(monkeypatch: pytest.MonkeyPatch, parallel: Any) -> None:
    if parallel != "auto":
        with pytest.raises(ValueError, match=r"^There is no process group for model 'm'"):
            fastnet.build(line, None, model_name="m", parallel=parallel)
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^There is no .*, but torchrun has started 3 processes"):
        fastnet.build(line, None, model_name="m", parallel=parallel)
    model = line()
    assert fastnet.build(model, None, parallel=None) is model


def refused(what: Any, *args: Any) -> str:
    try:
        what(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def refusals() -> dict[str, str]:
    """Do what is refused in a process group, and see that the models are of use afterwards."""
    found = {}
    model = mlp()
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    found["early"] = refused(
        lambda: fastnet.build(model, lambda _: early, model_name="m", parallel="fsdp")
    )
    model = mlp()
    spread = fastnet.build(model, "sgd", model_name="m", parallel="ddp")
    found["other"] = refused(lambda: fastnet.build(spread, "sgd", model_name="m", parallel="fsdp"))
    found["late"] = refused(lambda: fastnet.build(spread, "sgd", model_name="m", static_graph=True))
    assert fastnet.build(spread, "sgd", model_name="m") is spread
    run_all(TorchNetwork(supervised(spread)), batches(2))
    own = mlp().requires_grad_(False)
    made = fastnet.build(own, "sgd", model_name="m")
    own.requires_grad_(True)
    network = TorchNetwork(supervised(made))
    found["frozen"] = refused(lambda: run_all(network, batches(1)))
    run_all(network, batches(1), mode="eval")
    alone = fastnet.build(mlp, "sgd", parallel=None)
    run_all(TorchNetwork(supervised(alone)), batches(2))
    found["blocks"] = refused(
        lambda: fastnet.build(mlp, None, model_name="m", parallel="fsdp", blocks=nn.LSTM)
    )
    found["device"] = refused(
        lambda: fastnet.build(mlp, None, model_name="m", device="cuda:7", parallel="ddp")
    )
    found["elsewhere"] = refused(lambda: TorchNetwork(supervised(spread), device="meta"))
    dist.barrier()
    return found


@pytest.mark.slow
def test_what_is_refused_on_every_rank() -> None:
    expected = {
        "early": "updates no parameter of the sharded model",
        "other": "Model 'm' already is 'ddp', so parallel='fsdp' and the options [] come too late",
        "late": "so parallel='auto' and the options ['static_graph'] come too late",
        "frozen": "UpdateOp of 'm' would update a model in one of 2 processes, but nothing",
        "blocks": "No module inside the model is one of blocks=",
        "device": "device='cuda:7', but this machine has no such device",
        "elsewhere": "The network's device is meta, but the models ['m'] are",
    }
    for found in ranks(2)(refusals):
        assert found.keys() == expected.keys()
        for name, text in expected.items():
            assert text in found[name], name
