"""Models that `build` spreads over processes or devices: what it decides, and what it refuses.

That they train is tested with processes of their own, in tests/network/torch.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import fastnet
from fastnet.backend.torch import spreading
from fastnet.backend.torch.engines import bare, engine_of
from fastnet.network import TorchNetwork
from tests.network.programs import (
    batches,
    line,
    losses,
    mlp,
    no_gradients,
    raising,
    run_all,
    same_weights,
    supervised,
    twins,
)
from tests.ranks import ranks


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FASTNET_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(spreading, "get_num_gpus", lambda: count)


class TestDataParallel:
    @pytest.mark.parametrize("count", [0, 1])
    def test_no_hint_for_one_device(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        with_gpus(monkeypatch, count)
        model = line()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fastnet.build(model, None) is model

    def test_several_are_a_hint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_gpus(monkeypatch, 4)
        model = line()
        with pytest.warns(UserWarning, match="^There are 4 GPUs") as caught:
            assert fastnet.build(model, None) is model
        (warning,) = caught
        assert str(warning.message) == (
            "There are 4 GPUs, of which one is used. Start the program with `torchrun "
            "--nproc_per_node=4 program.py`, which has a process for each, and call "
            "fastnet.distributed.init() before fastnet.build. For FastEstimator's way, "
            "DataParallel, pass parallel='dp'; parallel=None says that one is meant."
        )
        assert warning.filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fastnet.build(line, None, parallel=None) is not None

    @pytest.mark.skipif(torch.cuda.is_available(), reason="the wrapper would use the GPUs")
    def test_on_request_trains_like_the_model_in_it(self) -> None:
        model, twin = twins(mlp)
        fastnet.build(lambda: twin, "adam")
        wrapped = fastnet.build(lambda: model, "adam", parallel="dp")
        assert type(wrapped) is nn.DataParallel
        assert bare(wrapped) is model
        data = batches(5)
        seen = losses(run_all(TorchNetwork(supervised(wrapped)), data))
        assert seen == losses(run_all(TorchNetwork(supervised(twin)), data))
        assert same_weights(model, twin)
        assert no_gradients(wrapped)


class TestNames:
    @pytest.mark.parametrize("given", ["DDP", "", 1, True, "fsdp2"])
    def test_no_engine(self, given: Any) -> None:
        with raising(
            ValueError,
            f"parallel={given!r} of model 'm' is none of 'auto', 'ddp', 'fsdp', 'dp' and None.",
        ):
            fastnet.build(line, None, model_name="m", parallel=given)

    def test_options_of_another_engine(self) -> None:
        with raising(
            TypeError,
            "build of model 'm' got the option 'reshard_after_forward', but parallel='ddp' has the "
            "options ['broadcast_buffers', 'bucket_cap_mb', 'device_mesh', "
            "'find_unused_parameters', 'gradient_as_bucket_view', 'process_group', "
            "'static_graph']. It is one of parallel='fsdp'.",
        ):
            fastnet.build(line, None, model_name="m", parallel="ddp", reshard_after_forward=True)

    def test_options_that_there_are_not(self) -> None:
        with pytest.raises(TypeError, match=r"Did you mean 'reshard_after_forward'\?$"):
            fastnet.build(line, None, parallel="fsdp", reshard_after=True)

    @pytest.mark.parametrize("parallel", [None, "dp"])
    def test_options_of_none(self, parallel: Any) -> None:
        with raising(
            TypeError,
            f"build of model 'm' got the option 'static_graph', but parallel={parallel!r} has no "
            "options. It is one of parallel='ddp'.",
        ):
            fastnet.build(line, None, model_name="m", parallel=parallel, static_graph=True)

    def test_options_of_many_processes_in_one(self) -> None:
        """A program is the same in one process and in many."""
        model = line()
        assert fastnet.build(model, None, static_graph=True) is model
        with raising(
            TypeError,
            "build of model 'm' got the option 'statig_graph', but parallel='auto' (here None) "
            "has no options. Did you mean 'static_graph'?",
        ):
            fastnet.build(line, None, model_name="m", statig_graph=True)

    @pytest.mark.parametrize("parallel", ["auto", None, "ddp", "fsdp"])
    def test_settings_that_are_the_optimizers(self, parallel: Any) -> None:
        with raising(
            TypeError,
            "build of model 'm' got the option 'lr', which neither it nor any engine that spreads "
            "models has. To give an optimizer settings pass a function, such as "
            "`optimizer_fn=lambda params: torch.optim.Adam(params, lr=1e-3)`.",
        ):
            fastnet.build(line, "adam", model_name="m", parallel=parallel, lr=1e-3)

    def test_a_parameter_of_build_that_is_mistyped(self) -> None:
        with raising(
            TypeError,
            "build of model 'm' got the option 'mixed_presision', but parallel='auto' (here None) "
            "has no options. Did you mean 'mixed_precision'?",
        ):
            fastnet.build(line, "adam", model_name="m", mixed_presision=True)  # type: ignore[call-overload,unused-ignore]


class TestWithoutAGroup:
    @pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
    def test_in_one_process(self, parallel: Any) -> None:
        with raising(
            ValueError,
            f"There is no process group to spread model 'm' over (parallel={parallel!r}). Call "
            "fastnet.distributed.init() before fastnet.build, or pass parallel=None for a model "
            "that stays by itself.",
        ):
            fastnet.build(line, None, model_name="m", parallel=parallel)

    @pytest.mark.parametrize("parallel", ["auto", "ddp", "fsdp"])
    def test_under_torchrun(self, monkeypatch: pytest.MonkeyPatch, parallel: Any) -> None:
        for name, value in {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        with raising(
            ValueError,
            "This process is one of 3 of torchrun, but there is no process group to spread model "
            f"'m' over (parallel={parallel!r}). Call fastnet.distributed.init() before "
            "fastnet.build, or pass parallel=None for a model that stays by itself.",
        ):
            fastnet.build(line, None, model_name="m", parallel=parallel)
        model = line()
        assert fastnet.build(model, None, parallel=None) is model

    def test_one_process_of_torchrun_needs_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        model = line()
        assert fastnet.build(model, None) is model


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
    for parallel in ("auto", "ddp", "fsdp", None):
        found[f"again {parallel}"] = refused(
            lambda parallel=parallel: fastnet.build(model, "sgd", model_name="n", parallel=parallel)
        )
    found["other"] = refused(lambda: fastnet.build(spread, "sgd", model_name="m", parallel="fsdp"))
    found["late"] = refused(lambda: fastnet.build(spread, "sgd", model_name="m", static_graph=True))
    assert fastnet.build(spread, "sgd", model_name="m") is spread
    run_all(TorchNetwork(supervised(spread)), batches(2))
    for kind, settings in {"alone": {"merge_grad": 2}, "frozen": {}}.items():
        own = mlp().requires_grad_(kind == "alone")
        parallel = None if kind == "alone" else "auto"
        made = fastnet.build(own, "sgd", model_name="m", parallel=parallel)
        own.requires_grad_(True)
        network = TorchNetwork(supervised(made, **settings))
        found[kind] = refused(lambda network=network: run_all(network, batches(1)))
        run_all(network, batches(1), mode="eval")
    alone = fastnet.build(mlp, "sgd", parallel=None)
    run_all(TorchNetwork(supervised(alone)), batches(2))
    found["blocks"] = refused(
        lambda: fastnet.build(mlp, None, model_name="m", parallel="fsdp", blocks=nn.LSTM)
    )
    found["no blocks"] = refused(
        lambda: fastnet.build(mlp, None, model_name="m", parallel="fsdp", blocks="Linear")
    )
    frozen = mlp().requires_grad_(False)
    found["nothing"] = refused(lambda: fastnet.build(frozen, None, model_name="m", parallel="ddp"))
    found["device"] = refused(
        lambda: fastnet.build(mlp, None, model_name="m", device="cuda:7", parallel="ddp")
    )
    found["elsewhere"] = refused(lambda: TorchNetwork(supervised(spread), device="meta"))
    policy = fastnet.build(
        mlp, "sgd", parallel="fsdp", blocks=lambda module: isinstance(module, nn.Linear)
    )
    found["policy"] = str([engine_of(one) for one in (policy, policy[0], policy[1])])
    dist.barrier()
    return found


def test_what_is_refused_on_every_rank() -> None:
    again = (
        "ValueError: Model 'n' is to have parallel={!r}, but the same Sequential was built with "
        "parallel='ddp' before, and its weights would be updated in both ways. Use the model that "
        "the first build returned, also in a second network."
    )
    expected = {
        "early": "WrongOptimizerError: The optimizer_fn of model 'm' returned SGD of parameters "
        "that are none of the sharded model's: it was made before parallel='fsdp' has put others "
        "in their places. Pass a function that makes the optimizer of the parameters that it is "
        "given.",
        "again auto": again.format("ddp"),
        "again ddp": again.format("ddp"),
        "again fsdp": again.format("fsdp"),
        "again None": again.format(None),
        "other": "ValueError: Model 'm' is to have parallel='fsdp', but it has the engine 'ddp' "
        "already. Pass the model without it, or leave `parallel` out.",
        "late": "ValueError: Model 'm' has the engine 'ddp' already, so its options "
        "['static_graph'] come too late. Give them to the engine, or pass the model without it.",
        "alone": "ValueError: UpdateOp of 'm' has merge_grad=2 in one of 2 processes, but the "
        "model has no engine that communicates its gradients. Build it with parallel='ddp' or "
        "'fsdp', or use merge_grad=1.",
        "frozen": "ValueError: UpdateOp of 'm' updates a model in one of 2 processes, but the "
        "model has no engine that communicates its gradients. Build it with parallel='ddp' or "
        "'fsdp' once the process group is there and it has something to train, or with "
        "parallel=None if each process is to have weights of its own.",
        "blocks": "ValueError: blocks names ['LSTM'], but model 'm' has no such modules. "
        "print(model) shows what it has.",
        "no blocks": "TypeError: blocks of model 'm' is 'Linear'. Pass classes of modules, or a "
        "function that says of a module whether it is sharded by itself.",
        "nothing": "ValueError: Model 'm' has no parameter with requires_grad, so there is nothing "
        "for parallel='ddp' to communicate. Pass parallel=None.",
        "device": "ValueError: device='cuda:7', but this machine has no such device: it has 1 cpu. "
        "Pass one of these, or None to have one chosen.",
        "elsewhere": "ValueError: The network's device is meta, but the models ['m'] are spread "
        "over processes, and were built on cpu. Leave the network's device out, or build them "
        "there.",
        "policy": "['fsdp', 'fsdp', None]",
    }
    for found in ranks(2)(refusals):
        if torch.cuda.is_available():
            found["device"] = expected["device"]
        assert found == expected
