"""A device that there is none of: steps are traced for it, and computed on the CPU.

What is traced is for torch's "meta" device, but for what stays on the CPU beside CUDA: what
optimizers count, and their numbers. It is split, recorded and replayed as for CUDA; in the place of
CUDA a recorder calls the function again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate

from fastnet.network.torch.captured import capture, lowering
from fastnet.network.torch.captured.stages import Stages

CPU, META = torch.device("cpu"), torch.device("meta")
# what optimizers of torch keep on the CPU, wherever parameters are
COUNTS = "step", "mu_product"


class Recorder:
    """Calls a function again, in the place of replaying what it has queued."""

    def __init__(self) -> None:
        self.device = CPU
        self.lock = Lock()
        self.failed: str | None = None
        self.warmed = self.recorded = self.replayed = self.begun = 0
        self.error: BaseException | None = None

    def begin(self) -> None:
        assert self.lock.locked()
        self.begun += 1

    def warm_up(self, call: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        self.warmed += 1
        return call()

    def record(self, call: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        self.recorded += 1
        if self.error is not None:
            raise self.error
        results: list[torch.Tensor] = []

        def replay() -> None:
            self.replayed += 1
            found = call()
            if not results:
                results.extend(found)
            for one, other in zip(results, found, strict=True):
                one.copy_(other)

        return replay, results


class Emulated:
    """What a test is told of the device.

    Attributes:
        recorder: What records.
        optimizers: Those whose counts stay on the CPU.
        stages: What was traced, step by step.
        device: What it is traced for; "cuda:0" does without a GPU where no gradients are taken.
    """

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.stages: list[Stages] = []
        self.device = META

    def is_on_cpu(self, tensor: torch.Tensor) -> bool:
        counts = [
            state[name]
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for name in COUNTS
            if name in state
        ]
        # numbers are made anew
        return any(tensor is one for one in counts) or tensor.dtype is torch.float64


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    found = Emulated()
    make_mode, open_like = capture.fake_mode, capture.open_like
    split, compile = lowering.split, lowering._compile

    def mode_of(opened: bool) -> Any:
        mode = make_mode(opened)
        make = mode.from_tensor

        def from_tensor(tensor: torch.Tensor, **settings: Any) -> Any:
            if found.is_on_cpu(tensor):
                return make(tensor, **settings)
            if found.device != META:
                with mode:
                    return torch.empty_strided(
                        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=found.device
                    )
            moved: torch.Tensor = tensor.detach().to(META)
            if isinstance(tensor, nn.Parameter):
                moved = nn.Parameter(moved, tensor.requires_grad)
            return make(moved, **settings)

        mode.from_tensor = from_tensor
        return mode

    def split_for_cpu(graph: Any, mode: Any) -> Any:
        stages = split(graph, mode)
        if stages is None:
            return None
        found.stages.append(stages)
        return stages._replace(device=CPU)

    def here(value: Any) -> Any:
        return CPU if value == found.device else value

    def compiled_for_cpu(graph: Any, examples: list[Any], **settings: Any) -> Any:
        for node in graph.graph.nodes:
            node.args = map_aggregate(node.args, here)
            node.kwargs = map_aggregate(node.kwargs, here)
        graph.recompile()
        if settings["options"].backend == "eager":
            return lambda tensors: graph(*tensors)
        with settings["mode"], torch.no_grad():
            inputs = [
                torch.empty_strided(one.size(), one.stride(), dtype=one.dtype) for one in examples
            ]
            graph = make_fx(graph, tracing_mode="real")(*inputs)
        return compile(graph, inputs, **settings)

    monkeypatch.setattr(capture, "fake_mode", mode_of)
    monkeypatch.setattr(capture, "open_like", lambda mode, one: open_like(mode, one.to(META)))
    monkeypatch.setattr(lowering, "split", split_for_cpu)
    monkeypatch.setattr(lowering, "_compile", compiled_for_cpu)
    monkeypatch.setattr(lowering, "recorder_of", lambda device: found.recorder)
    return found
