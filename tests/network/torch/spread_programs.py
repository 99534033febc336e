"""Programs that run in several processes: with fastnet, by hand under the engine, and in one.

Each is a class. `losses` is all that the three have in common; what is by hand says itself when
gradients are communicated, as a user of the engine has to.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fastnet
from fastnet.backend.torch.names import innermost as bare
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy, L2Regularization
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from fastnet.schedule import EpochScheduler, RepeatScheduler
from fastnet.slicer import AxisSlicer, SlidingSlicer
from tests.network.programs import Batch, mlp, seeded, sgd

SIZE = 4  # examples for each rank in each step

Models = list[Any]
Optimizers = list[torch.optim.Optimizer]


def data(steps: int, world: int, seed: int = 0) -> list[list[Batch]]:
    """Return for each step a batch for each rank."""
    source = torch.Generator().manual_seed(seed)
    return [
        [
            {
                "x": torch.randn(SIZE, 16, generator=source),
                "t": torch.randint(0, 4, (SIZE,), generator=source),
                "z": torch.randn(SIZE, 16, generator=source),
            }
            for _ in range(world)
        ]
        for _ in range(steps)
    ]


def joined(parts: list[Batch]) -> Batch:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


class Program:
    """A classifier, updated in each step."""

    count = 1
    steps = 6
    options: dict[str, Any] = {}  # noqa: RUF012
    fsdp_options: dict[str, Any] = {}  # noqa: RUF012
    engines = ("ddp", "fsdp")
    blocks: Any = nn.Linear
    # whether the arithmetic of the loop by hand is that of fastnet, bit by bit, on two ranks
    exact = True
    has_loop = has_one = True

    def make(self) -> Models:
        return [seeded(mlp, place) for place in range(self.count)]

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def sources(self) -> Any:
        return self.optimizer

    def ops(self, models: Models) -> list[Any]:
        (model,) = models
        return [
            ModelOp(model, "x", "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]

    def network(self, models: Models) -> Any:
        return fastnet.Network(self.ops(models))

    def loss(self, models: Models, batch: Batch) -> torch.Tensor:
        return cross_entropy(models[0](batch["x"]), batch["t"])

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        self.loss(models, batch).backward()
        self.update(optimizers)

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        self.by_hand(models, optimizers, joined(parts), step)

    def before(self, models: Models, step: int) -> None:
        """Do what a program does between its steps, in all three."""

    def update(self, optimizers: Optimizers) -> None:
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


class Adam(Program):
    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01)


class Merged(Program):
    """Three steps are averaged for an update."""

    merge = 3
    steps = 7
    exact = False  # the loop divides each loss, fastnet their sum

    def ops(self, models: Models) -> list[Any]:
        *ops, update = super().ops(models)
        return [*ops, UpdateOp(update.model, "loss", merge_grad=self.merge)]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        is_last = (step + 1) % self.merge == 0
        with nullcontext() if is_last else not_syncing(models[0]):
            (self.loss(models, batch) / self.merge).backward()
        if is_last:
            self.update(optimizers)


class MergedTwice(Merged):
    merge = 2
    exact = True  # halves are exact


class Clipped(Program):
    """Gradients are values: they are clipped by their norm, which is that of the averages."""

    LIMIT = 0.2

    def ops(self, models: Models) -> list[Any]:
        (model,) = models
        return [
            ModelOp(model, "x", "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            GradientOp("loss", "g", model=model),
            LambdaOp(self.clip, "g", "clipped"),
            UpdateOp(model, "loss", gradients="clipped"),
        ]

    @classmethod
    def clip(cls, gradients: list[Any]) -> list[Any]:
        squares = [(one**2).sum() for one in gradients]
        whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in squares]
        factor = cls.LIMIT / max(float(torch.stack(whole).sum().sqrt()), cls.LIMIT)
        return [one * factor for one in gradients]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        self.loss(models, batch).backward()
        parameters = list(models[0].parameters())
        for parameter, gradient in zip(
            parameters, self.clip([one.grad for one in parameters]), strict=True
        ):
            parameter.grad = gradient
        self.update(optimizers)


class ClippedLater(Clipped):
    """And two steps of them are averaged."""

    def ops(self, models: Models) -> list[Any]:
        *ops, update = super().ops(models)
        return [*ops, UpdateOp(update.model, "loss", gradients="clipped", merge_grad=2)]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        parameters = list(models[0].parameters())
        before = [one.grad for one in parameters]
        for parameter in parameters:
            parameter.grad = None
        self.loss(models, batch).backward()
        parameters = list(models[0].parameters())
        clipped = self.clip([one.grad for one in parameters])
        for parameter, gradient, earlier in zip(parameters, clipped, before, strict=True):
            parameter.grad = gradient / 2 if earlier is None else earlier + gradient / 2
        if step % 2:
            self.update(optimizers)


class Speaker(nn.Module):
    """The classifier, with arguments and results that have names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, values: Any, scale: Any = None) -> dict[str, Any]:
        assert scale is None
        return {"hidden": values, "scores": self.inner(values)}


class Named(Program):
    """Inputs and outputs of the model go by name."""

    def make(self) -> Models:
        return [seeded(Speaker)]

    def ops(self, models: Models) -> list[Any]:
        (model,) = models
        return [
            ModelOp(model, {"values": "x"}, {"scores": "y"}),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]

    def loss(self, models: Models, batch: Batch) -> torch.Tensor:
        return cross_entropy(models[0](batch["x"])["scores"], batch["t"])


class ByHook(Program):
    """Gradients are clipped by torch's own function, before each step of the optimizer."""

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        made = super().optimizer(parameters)
        owned = made.param_groups[0]["params"]
        made.register_step_pre_hook(lambda *_: [nn.utils.clip_grad_norm_(owned, 0.1), None][1])
        return made


class ClippedByNorm(Program):
    """The update clips gradients by their norm, of all ranks and shards."""

    exact = False  # the norm of shards is put together in another order
    LIMIT = 0.2
    merge = 1

    def ops(self, models: Models) -> list[Any]:
        *ops, update = super().ops(models)
        told = {"grad_norm": "norm", "stepped": "stepped"}
        clipped = UpdateOp(
            update.model, "loss", merge_grad=self.merge, clip_norm=self.LIMIT, outputs=told
        )
        return [*ops, clipped]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        is_last = (step + 1) % self.merge == 0
        with nullcontext() if is_last else not_syncing(models[0]):
            (self.loss(models, batch) / self.merge).backward()
        if is_last:
            nn.utils.clip_grad_norm_(models[0].parameters(), self.LIMIT)
            self.update(optimizers)


class ClippedMergedByNorm(ClippedByNorm):
    """And two steps are averaged before."""

    merge = 2


class ClippedByValue(Program):
    """The update clips each number of the gradients."""

    def ops(self, models: Models) -> list[Any]:
        *ops, update = super().ops(models)
        return [*ops, UpdateOp(update.model, "loss", clip_value=0.02)]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        self.loss(models, batch).backward()
        nn.utils.clip_grad_value_(models[0].parameters(), 0.02)
        self.update(optimizers)


class Gan(Program):
    """Two models with a loss each; the first one's goes through the second."""

    count = 2
    defer = True

    def ops(self, models: Models) -> list[Any]:
        maker, judge = models
        return [
            ModelOp(maker, "z", "h"),
            LambdaOp(self.widen, "h", "fake"),
            ModelOp(judge, "fake", "of_fake"),
            ModelOp(judge, "x", "of_real"),
            LambdaOp(self.of_judge, ["of_fake", "of_real"], "judge_loss"),
            LambdaOp(self.of_maker, "of_fake", "maker_loss"),
            UpdateOp(maker, "maker_loss", defer=self.defer),
            UpdateOp(judge, "judge_loss", defer=self.defer),
        ]

    @staticmethod
    def widen(h: torch.Tensor) -> torch.Tensor:
        return h.repeat(1, 4)

    @staticmethod
    def of_judge(of_fake: torch.Tensor, of_real: torch.Tensor) -> torch.Tensor:
        return (of_fake**2).mean() + ((of_real - 1) ** 2).mean()

    @staticmethod
    def of_maker(of_fake: torch.Tensor) -> torch.Tensor:
        return ((of_fake - 1) ** 2).mean()

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        maker, judge = models
        fake = self.widen(maker(batch["z"]))
        self.of_maker(judge(fake)).backward()
        # what came to the judge is of the wrong loss
        for parameter in judge.parameters():
            parameter.grad = None
        self.of_judge(judge(fake.detach()), judge(batch["x"])).backward()
        self.update(optimizers)


class MergedGan(Gan):
    """And two steps of each are averaged."""

    has_loop = False

    def ops(self, models: Models) -> list[Any]:
        *ops, maker, judge = super().ops(models)
        return [
            *ops,
            UpdateOp(maker.model, "maker_loss", merge_grad=2),
            UpdateOp(judge.model, "judge_loss", merge_grad=2),
        ]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        maker, judge = models
        fake = self.widen(maker(batch["z"]))
        of_fake = judge(fake)
        losses = self.of_maker(of_fake), self.of_judge(of_fake, judge(batch["x"]))
        for model, loss in zip(models, losses, strict=True):
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                before = 0 if parameter.grad is None else parameter.grad
                parameter.grad = before + gradient / 2
        if step % 2:
            self.update(optimizers)


class Trunk(Program):
    """A trunk with two heads; it is updated by the losses of both."""

    count = 3

    def ops(self, models: Models) -> list[Any]:
        trunk, first, second = models
        return [
            ModelOp(trunk, "x", "h"),
            LambdaOp(Gan.widen, "h", "w"),
            ModelOp(first, "w", "y"),
            ModelOp(second, "w", "v"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            LambdaOp(lambda v: (v**2).mean(), "v", "other"),
            LambdaOp(lambda a, b: a + b, ["loss", "other"], "sum"),
            UpdateOp(first, "loss"),
            UpdateOp(second, "other"),
            UpdateOp(trunk, "sum"),
        ]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        trunk, first, second = models
        wide = Gan.widen(trunk(batch["x"]))
        loss = cross_entropy(first(wide), batch["t"]) + (second(wide) ** 2).mean()
        loss.backward()
        self.update(optimizers)


class Branches(nn.Module):
    """One of two branches runs, by what the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 4)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        chosen = self.first if int(t[0]) < 2 else self.second
        out: torch.Tensor = chosen(x)
        return out


class Unused(Program):
    """Of the model a part is unused, on some ranks in some steps, or on all."""

    options = {"find_unused_parameters": True}  # noqa: RUF012
    blocks = ()  # each rank has to run the blocks that the others run

    def make(self) -> Models:
        return [seeded(Branches)]

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        # a gradient of zeros, which FSDP2 has in the place of none, changes nothing
        return torch.optim.SGD(parameters, lr=0.1)

    def ops(self, models: Models) -> list[Any]:
        (model,) = models
        return [
            ModelOp(model, ["x", "t"], "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ]

    def loss(self, models: Models, batch: Batch) -> torch.Tensor:
        return cross_entropy(models[0](batch["x"], batch["t"]), batch["t"])

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        (sum(self.loss(models, part) for part in parts) / len(parts)).backward()
        self.update(optimizers)


class UnusedUnasked(Unused):
    """Where ops average gradients, the engine need not be asked to look for what is unused."""

    engines = ("ddp",)
    options = {}  # noqa: RUF012
    has_loop = False

    def ops(self, models: Models) -> list[Any]:
        *ops, update = super().ops(models)
        # another taker of gradients, so that it is the ops
        return [*ops, LambdaOp(lambda y: y.mean(), "y", "m"), GradientOp("m", "g", "y"), update]


class UnusedLater(Unused):
    """And two steps are averaged: of a part there may be gradients of one rank's one step."""

    options = {}  # noqa: RUF012
    has_loop = False

    def ops(self, models: Models) -> list[Any]:
        *ops, update = super().ops(models)
        return [*ops, UpdateOp(update.model, "loss", merge_grad=2)]

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        (sum(self.loss(models, part) for part in parts) / len(parts) / 2).backward()
        if step % 2:
            self.update(optimizers)


class Frozen(Program):
    """A layer is frozen when the model is built, is thawed later, and another one is frozen."""

    has_loop = False  # DistributedDataParallel by itself would leave the thawed layer different

    def make(self) -> Models:
        (model,) = super().make()
        model[0].requires_grad_(False)
        return [model]

    def before(self, models: Models, step: int) -> None:
        model = bare(models[0])
        if step == 2:
            model[0].requires_grad_(True)
        if step == 4:
            model[2].requires_grad_(False)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(x))
        return out


class Buffers(Program):
    """BatchNorm, whose buffers are the first rank's in each step."""

    blocks = ()

    def make(self) -> Models:
        return [seeded(Normed)]

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        (model,) = models
        copies = [copy.deepcopy(model) for _ in parts]
        for one, part in zip(copies, parts, strict=True):
            (self.loss([one], part) / len(parts)).backward()
        for parameter, *others in zip(
            model.parameters(), *(one.parameters() for one in copies), strict=True
        ):
            parameter.grad = torch.stack([one.grad for one in others]).sum(0)
        model.load_state_dict(dict(copies[0].named_buffers()), strict=False)
        self.update(optimizers)


class NormedGan(Gan):
    """A judge with BatchNorm that runs twice in a step: no buffer changes between its passes."""

    has_loop = has_one = False

    def make(self) -> Models:
        return [seeded(mlp), seeded(Normed, 1)]


class MergedBuffers(Merged, Buffers):
    has_one = False


class Sliced(Program):
    """Each half of a batch makes an update of its own."""

    def network(self, models: Models) -> Any:
        slicers = [
            SlidingSlicer(window_size=[2, -1], strides=[2, 1], slice=["x"], unslice=["x"]),
            SlidingSlicer(window_size=[2], strides=[2], slice=["t"], unslice=["t"]),
            AxisSlicer(axis=0, unslice=["y", "loss"]),
        ]
        ops = [Delete("z"), *self.ops(models)]
        return fastnet.Network(ops, slicers=slicers)

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        for half in (slice(0, 2), slice(2, 4)):
            self.loss(models, {key: value[half] for key, value in batch.items()}).backward()
            self.update(optimizers)

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        for half in (slice(0, 2), slice(2, 4)):
            halves = [{key: value[half] for key, value in part.items()} for part in parts]
            self.loss(models, joined(halves)).backward()
            self.update(optimizers)


class Misled(Program):
    """Trained on inputs that were moved to where the loss grows."""

    exact = False

    def ops(self, models: Models) -> list[Any]:
        (model,) = models
        return [
            Watch("x"),
            ModelOp(model, "x", "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            FGSM("x", "loss", "moved", epsilon=0.1, clip_low=-10, clip_high=10),
            ModelOp(model, "moved", "v"),
            CrossEntropy(("v", "t"), "other", from_logits=True),
            LambdaOp(lambda a, b: a + b, ["loss", "other"], "sum"),
            UpdateOp(model, "sum"),
        ]

    def loss(self, models: Models, batch: Batch) -> torch.Tensor:
        (model,) = models
        x = batch["x"].clone().requires_grad_()
        loss = cross_entropy(model(x), batch["t"])
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        moved = (x + 0.1 * gradient.sign()).clamp(-10, 10)
        return loss + cross_entropy(model(moved), batch["t"])


class Scheduled(Program):
    """An optimizer for each second epoch, and an op for some."""

    has_loop = False

    def sources(self) -> Any:
        return RepeatScheduler([sgd(0.1), sgd(0.02, momentum=0.9)])

    def ops(self, models: Models) -> list[Any]:
        double = LambdaOp(lambda loss: 2 * loss, "loss", "loss")
        *ops, update = super().ops(models)
        return [*ops, EpochScheduler({1: None, 2: double}), update]

    def make(self) -> Models:
        self.others: list[torch.optim.Optimizer] = []
        return super().make()

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        if not self.others:
            self.others = [
                torch.optim.SGD(models[0].parameters(), lr=0.1),
                torch.optim.SGD(models[0].parameters(), lr=0.02, momentum=0.9),
            ]
        epoch = 1 + step // 2
        (self.loss(models, batch) * (1 if epoch < 2 else 2)).backward()
        self.update([self.others[(epoch - 1) % 2]])


class Penalised(Program):
    """The squares of the weights are a part of the loss."""

    def ops(self, models: Models) -> list[Any]:
        *ops, _ = super().ops(models)
        (model,) = models
        return [*ops, L2Regularization("loss", "sum", model, beta=0.1), UpdateOp(model, "sum")]

    exact = False
    has_loop = False

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        squares = sum((one**2).sum() for one in models[0].parameters()) / 2
        (self.loss(models, batch) + 0.1 * squares).backward()
        self.update(optimizers)


class PenalisedLater(Penalised):
    """And two steps are averaged."""

    def ops(self, models: Models) -> list[Any]:
        *ops, update = super().ops(models)
        return [*ops, UpdateOp(update.model, "sum", merge_grad=2)]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        squares = sum((one**2).sum() for one in models[0].parameters()) / 2
        ((self.loss(models, batch) + 0.1 * squares) / 2).backward()
        if step % 2:
            self.update(optimizers)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(torch.relu(self.inner(x))))
        return out


class Shared(Program):
    """A layer that runs twice, and is a part of two models."""

    engines = ("ddp",)
    count = 2
    has_loop = False

    def make(self) -> Models:
        first, second = seeded(Tied, 0), seeded(Tied, 1)
        second.inner = first.inner
        return [first, second]

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def ops(self, models: Models) -> list[Any]:
        first, second = models
        return [
            ModelOp(first, "x", "y"),
            ModelOp(second, "x", "v"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            LambdaOp(lambda v: (v**2).mean(), "v", "other"),
            UpdateOp(first, "loss"),
            UpdateOp(second, "other"),
        ]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        first, second = models
        loss, other = cross_entropy(first(batch["x"]), batch["t"]), (second(batch["x"]) ** 2).mean()
        (loss + other).backward()
        # the layer is of both optimizers, of which the first takes the gradient away
        self.update(optimizers)


class Options(Program):
    options = {"gradient_as_bucket_view": True, "static_graph": True, "bucket_cap_mb": 1}  # noqa: RUF012
    engines = ("ddp",)


class Resharding(Program):
    """All of the options of FSDP2 that change no number."""

    fsdp_options = {"reshard_after_forward": False}  # noqa: RUF012
    engines = ("fsdp",)


class MergedInHalf(Merged):
    """Gradients of bfloat16 that are communicated as float32."""

    merge = 2  # a third of a loss would be another number in bfloat16
    engines = ("fsdp",)
    has_one = False
    blocks = ()
    fsdp_options = {  # noqa: RUF012
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    }

    def loss(self, models: Models, batch: Batch) -> torch.Tensor:
        return cross_entropy(models[0](batch["x"]).float(), batch["t"])

    def ops(self, models: Models) -> list[Any]:
        run, *ops = super().ops(models)
        return [run, LambdaOp(lambda y: y.float(), "y", "y"), *ops]


@contextmanager
def not_syncing(model: Any) -> Iterator[None]:
    """Let a backward pass of a program by hand communicate nothing."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def spread_by_hand(model: nn.Module, engine: str, program: Program) -> nn.Module:
    if engine == "ddp":
        return DistributedDataParallel(model, **program.options)
    for module in model.modules():
        if program.blocks and isinstance(module, program.blocks):
            fully_shard(module, **program.fsdp_options)
    sharded: Any = fully_shard(model, **program.fsdp_options)
    if program.options.get("find_unused_parameters"):
        sharded.set_reduce_scatter_unused_params(True)
    made: nn.Module = sharded
    return made


def whole(models: Models) -> list[dict[str, torch.Tensor]]:
    """Return the weights and buffers of models, put together."""
    states = [bare(model).state_dict() for model in models]
    return [
        {
            name: (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()
            for name, one in state.items()
        }
        for state in states
    ]


def build_in(engine: str, program: Program, models: Models) -> Models:
    """Build a program's models under an engine."""
    if engine == "ddp":
        options = dict(program.options)
    else:
        options = {"blocks": program.blocks, **program.fsdp_options}
        if program.options.get("find_unused_parameters"):
            options["find_unused_parameters"] = True
    optimizers = [program.sources()] * len(models)
    built = fastnet.build(lambda: models, optimizers, parallel=engine, **options)
    return built if isinstance(built, list) else [built]


def run_fastnet(program: Program, engine: str, batches: list[list[Batch]]) -> Models:
    """Run a program with fastnet on this rank's batches, an opening for each two steps."""
    built = build_in(engine, program, program.make())
    network = program.network(built)
    rank = dist.get_rank()
    for first in range(0, len(batches), 2):
        program.before(built, first)
        with network(mode="train", epoch=1 + first // 2):
            for parts in batches[first : first + 2]:
                network.run_step(parts[rank])
    return built


def compare(name: str, engine: str) -> dict[str, Any]:
    """Run a program with fastnet, by hand under the engine, and in one process."""
    program: Program = globals()[name]()
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = data(program.steps, world)
    torch.manual_seed(rank)
    results = {"fastnet": whole(run_fastnet(program, engine, batches))}
    if program.has_loop:
        models = [spread_by_hand(one, engine, program) for one in program.make()]
        optimizers = [program.optimizer(one.parameters()) for one in models]
        for step, parts in enumerate(batches):
            program.by_hand(models, optimizers, parts[rank], step)
        results["by hand"] = whole(models)
    if program.has_one:
        models = program.make()
        optimizers = [program.optimizer(one.parameters()) for one in models]
        for step, parts in enumerate(batches):
            if step % 2 == 0:
                program.before(models, step)
            program.in_one(models, optimizers, parts, step)
        results["in one"] = whole(models)
    return results
