"""Programs that run on several ranks: with fastnet, as a loop under the engine, and in one process.

Each program is a class. `losses` is all that the three have in common.
"""

from __future__ import annotations

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
from fastnet.backend.torch.wrappers import unwrap_all
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.loss import CrossEntropy, L2Regularization
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.programs import Batch, mlp, seeded

SIZE = 4  # The samples of each rank in each step.

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
    """A classifier that is updated in each step."""

    engines = ("ddp", "fsdp")
    count, steps, merge = 1, 6, 1
    options: dict[str, Any] = {}  # noqa: RUF012
    fsdp_options: dict[str, Any] = {}  # noqa: RUF012
    blocks: Any = nn.Linear
    build_settings: dict[str, Any] = {}  # noqa: RUF012
    # Whether on two ranks the loop under the engine has the same numbers bit for bit.
    exact = True
    has_loop = has_one = True
    distance = 1e-6  # From one process.

    def make(self) -> Models:
        return [seeded(mlp, place) for place in range(self.count)]

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def before_update(self, model: Any) -> list[Any]:
        """Return the ops between the loss and the update."""
        return []

    def update(self, model: Any) -> Any:
        return UpdateOp(model, "loss", merge_grad=self.merge)

    def ops(self, models: Models) -> list[Any]:
        (model,) = models
        return [
            ModelOp(model, "x", "y"),
            CrossEntropy(("y", "t"), "loss", from_logits=True),
            *self.before_update(model),
            self.update(model),
        ]

    def losses(self, models: Models, batch: Batch) -> list[torch.Tensor]:
        """Return the loss of each model."""
        return [cross_entropy(models[0](batch["x"]), batch["t"])]

    def change_gradients(self, model: Any) -> None:
        """Change the averaged gradients before each step of the optimizer."""

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        """Take a step under an engine; of one model."""
        is_last = (step + 1) % self.merge == 0
        with nullcontext() if is_last else no_sync(models[0]):
            (loss,) = self.losses(models, batch)
            (loss / self.merge).backward()
        if is_last:
            self.change_gradients(models[0])
            self.step(optimizers)

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        """Take a step in one process, with each loss differentiated by its own model."""
        losses = self.losses(models, joined(parts))
        for model, loss in zip(models, losses, strict=True):
            parameters = [one for one in model.parameters() if one.requires_grad]
            gradients = torch.autograd.grad(loss / self.merge, parameters, retain_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                before = parameter.grad
                parameter.grad = gradient if before is None else before + gradient
        if (step + 1) % self.merge == 0:
            for model in models:
                self.change_gradients(model)
            self.step(optimizers)

    def before(self, models: Models, step: int) -> None:
        """Change models between steps."""

    def averages(self, network: Any) -> Models:
        """Return further models to compare."""
        return []

    def step(self, optimizers: Optimizers) -> None:
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


class Merged(Program):
    """Two steps are averaged for an update."""

    merge, steps = 2, 7


class BucketViews(Program):
    """Gradients are views of the wrapper's buckets where it averages them."""

    engines = ("ddp",)
    options = {"gradient_as_bucket_view": True}  # noqa: RUF012


class ClippedByNorm(Program):
    """The update clips merged gradients by their norm over all ranks and shards."""

    merge = 2
    exact = False  # The norm of shards is summed in another order.

    def update(self, model: Any) -> Any:
        reports = {"grad_norm": "norm", "stepped": "stepped"}
        return UpdateOp(model, "loss", merge_grad=self.merge, clip_norm=0.2, outputs=reports)

    def change_gradients(self, model: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)


class Given(Program):
    """Gradients are values, which an op clips by the norm of the averages."""

    def before_update(self, model: Any) -> list[Any]:
        return [GradientOp("loss", "g", model=model), LambdaOp(self.clip, "g", "clipped")]

    def update(self, model: Any) -> Any:
        return UpdateOp(model, "loss", gradients="clipped", merge_grad=self.merge)

    @staticmethod
    def clip(gradients: list[Any]) -> list[Any]:
        squares = [(one**2).sum() for one in gradients]
        full = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in squares]
        factor = 0.2 / max(float(torch.stack(full).sum().sqrt()), 0.2)
        return [one * factor for one in gradients]

    def change_gradients(self, model: Any) -> None:
        parameters = list(model.parameters())
        clipped = self.clip([one.grad for one in parameters])
        for parameter, gradient in zip(parameters, clipped, strict=True):
            parameter.grad = gradient


class Penalized(Program):
    """The loss has the norm of its gradient by the inputs, which is differentiated, too."""

    engines = ("ddp",)
    has_loop = False  # The engine's hooks do not take part in `torch.autograd.grad`.

    def before_update(self, model: Any) -> list[Any]:
        return [
            GradientOp("loss", "slope", inputs="x", higher_order=True),
            LambdaOp(self.penalize, ["loss", "slope"], "loss"),
        ]

    def ops(self, models: Models) -> list[Any]:
        return [Watch("x"), *super().ops(models)]

    @staticmethod
    def penalize(loss: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        # In one process the gradient of the mean over all ranks is smaller.
        share = 1.0 if len(slope) == SIZE else len(slope) / SIZE
        return loss + 10 * ((share * slope).norm(dim=1) - 1).pow(2).mean()

    def losses(self, models: Models, batch: Batch) -> list[torch.Tensor]:
        x = batch["x"].clone().requires_grad_(True)
        loss = cross_entropy(models[0](x), batch["t"])
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return [self.penalize(loss, slope)]


class Gan(Program):
    """Two models with a loss each, whose updates are deferred; one loss goes through both."""

    count = 2

    def ops(self, models: Models) -> list[Any]:
        maker, judge = models
        return [
            ModelOp(maker, "z", "h"),
            LambdaOp(self.widen, "h", "fake"),
            ModelOp(judge, "fake", "of_fake"),
            ModelOp(judge, "x", "of_real"),
            LambdaOp(self.of_judge, ["of_fake", "of_real"], "judge_loss"),
            LambdaOp(self.of_maker, "of_fake", "maker_loss"),
            UpdateOp(maker, "maker_loss", merge_grad=self.merge, defer=True),
            UpdateOp(judge, "judge_loss", merge_grad=self.merge, defer=True),
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

    def losses(self, models: Models, batch: Batch) -> list[torch.Tensor]:
        maker, judge = models
        of_fake = judge(self.widen(maker(batch["z"])))
        return [self.of_maker(of_fake), self.of_judge(of_fake, judge(batch["x"]))]

    def by_hand(self, models: Models, optimizers: Optimizers, batch: Batch, step: int) -> None:
        maker, judge = models
        fake = self.widen(maker(batch["z"]))
        self.of_maker(judge(fake)).backward()
        for parameter in judge.parameters():
            parameter.grad = None  # Of the wrong loss.
        self.of_judge(judge(fake.detach()), judge(batch["x"])).backward()
        self.step(optimizers)


class MergedGan(Gan):
    merge, has_loop = 2, False


class NormedGan(Gan):
    """A judge with BatchNorm that runs twice in a step: no buffer changes between its passes."""

    has_loop = has_one = False

    def make(self) -> Models:
        return [seeded(mlp), seeded(Normed, 1)]


class Attention(nn.Module):
    """A transformer over four steps of four features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        # A bias of the keys has no gradient but rounding errors, which Adam would scale up.
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, bias=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(self.embed(x.unflatten(1, (4, 4)))).mean(1))
        return out


class Transformer(Program):
    """Attention, which is updated by Adam."""

    engines = ("ddp",)

    def make(self) -> Models:
        return [seeded(Attention)]

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3)


class Branches(nn.Module):
    """Runs one of two branches, depending on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 4)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        chosen = self.first if int(t[0]) < 2 else self.second
        out: torch.Tensor = chosen(x)
        return out


class Unused(Program):
    """A part of the model is unused on some ranks in some steps."""

    options = {"find_unused_parameters": True}  # noqa: RUF012
    blocks = ()  # All ranks must run the same blocks.

    def make(self) -> Models:
        return [seeded(Branches)]

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        # FSDP2 has a gradient of zeros instead of none, which changes nothing here.
        return torch.optim.SGD(parameters, lr=0.1)

    def ops(self, models: Models) -> list[Any]:
        (model,) = models
        loss = CrossEntropy(("y", "t"), "loss", from_logits=True)
        return [ModelOp(model, ["x", "t"], "y"), loss, self.update(model)]

    def losses(self, models: Models, batch: Batch) -> list[torch.Tensor]:
        return [cross_entropy(models[0](batch["x"], batch["t"]), batch["t"])]

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        losses = [self.losses(models, part)[0] for part in parts]
        (torch.stack(losses).mean() / self.merge).backward()
        if (step + 1) % self.merge == 0:
            self.step(optimizers)


class UnusedMerged(Unused):
    """Where updates average gradients, the engine needs no option."""

    merge, options, has_loop = 2, {}, False


class Frozen(Program):
    """One layer is frozen when the model is built and later trained, another the other way."""

    has_loop = False  # DistributedDataParallel would leave the layer different on each rank.

    def make(self) -> Models:
        (model,) = super().make()
        model[0].requires_grad_(False)
        return [model]

    def before(self, models: Models, step: int) -> None:
        model = unwrap_all(models[0])
        model[0].requires_grad_(step >= 2)
        model[2].requires_grad_(step < 4)


class FrozenMerged(Merged):
    """A layer is never trained."""

    engines = ("ddp",)

    def make(self) -> Models:
        (model,) = super().make()
        model[0].requires_grad_(False)
        return [model]


class FrozenInWindow(Program):
    """A layer is trained in the first half of each window only."""

    merge, steps = 4, 8
    has_loop = False  # DistributedDataParallel would leave the layer different on each rank.

    def before(self, models: Models, step: int) -> None:
        unwrap_all(models[0])[0].requires_grad_(step % 4 == 0)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(x))
        return out


class Buffers(Program):
    """BatchNorm, whose buffers are those of rank 0 in each step."""

    blocks, has_one = (), False

    def make(self) -> Models:
        return [seeded(Normed)]


class MergedBuffers(Buffers):
    merge = 2


class Penalised(Program):
    """The squares of the weights are a part of the loss."""

    merge, has_loop = 2, False

    def before_update(self, model: Any) -> list[Any]:
        return [L2Regularization("loss", "loss", model, beta=0.1)]

    def losses(self, models: Models, batch: Batch) -> list[torch.Tensor]:
        squares = sum((one**2).sum() for one in models[0].parameters()) / 2
        return [super().losses(models, batch)[0] + 0.1 * squares]


class Shared(Program):
    """A layer is a part of two models."""

    engines = ("ddp",)
    count, has_loop = 2, False

    def make(self) -> Models:
        first, second = super().make()
        second[0] = first[0]
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

    def in_one(self, models: Models, optimizers: Optimizers, parts: list[Batch], step: int) -> None:
        first, second = models
        batch = joined(parts)
        loss, other = cross_entropy(first(batch["x"]), batch["t"]), (second(batch["x"]) ** 2).mean()
        (loss + other).backward()
        self.step(optimizers)


class Averaged(Program):
    """An average of the weights follows the updates."""

    engines = ("ddp",)  # EMA refuses sharded models.
    merge, exact = 2, False

    def ops(self, models: Models) -> list[Any]:
        return [*super().ops(models), EMA(models[0], decay=0.5)]

    def averages(self, network: Any) -> Models:
        return [network.ops[-1].averaged]

    def share(self, updates: int) -> float:
        """Return the share of the old average after some updates."""
        return 0.5


class Warming(Averaged):
    """The decay is a function, at another address on each rank."""

    def ops(self, models: Models) -> list[Any]:
        functions = [lambda n: n / (2 + n) for _ in range(1 + 50 * dist.get_rank())]
        return [*Program.ops(self, models), EMA(models[0], decay=functions[-1])]

    def share(self, updates: int) -> float:
        return updates / (2 + updates)


class Half(Program):
    """Mixed precision."""

    build_settings = {"mixed_precision": "bfloat16"}  # noqa: RUF012
    distance = 1e-2

    def losses(self, models: Models, batch: Batch) -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return super().losses(models, batch)


class HalfReduced(Program):
    """Gradients in bfloat16 that FSDP2 communicates in float32."""

    engines = ("fsdp",)
    merge, has_one, blocks = 2, False, ()
    fsdp_options = {  # noqa: RUF012
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    }

    def losses(self, models: Models, batch: Batch) -> list[torch.Tensor]:
        return [cross_entropy(models[0](batch["x"]).float(), batch["t"])]

    def ops(self, models: Models) -> list[Any]:
        run, *ops = super().ops(models)
        return [run, LambdaOp(lambda y: y.float(), "y", "y"), *ops]


@contextmanager
def no_sync(model: Any) -> Iterator[None]:
    """Let a backward pass of a hand-written loop communicate nothing."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def wrap(model: nn.Module, engine: str, program: Program) -> nn.Module:
    """Wrap or shard a model without fastnet."""
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


def full_states(models: Models) -> list[dict[str, torch.Tensor]]:
    """Return the full weights and buffers of models."""
    return [
        {
            name: (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()
            for name, one in unwrap_all(model).state_dict().items()
        }
        for model in models
    ]


def build(program: Program, engine: str, wrapped_by: str = "build") -> Models:
    """Build the models of a program, which `build` or the user wraps."""
    models = program.make()
    options: dict[str, Any] = {}
    if wrapped_by == "user":
        models = [wrap(one, engine, program) for one in models]
    elif engine == "ddp":
        options = {"parallel": "ddp", **program.options}
    else:
        options = {"parallel": "fsdp", "blocks": program.blocks, **program.fsdp_options}
    optimizers = [program.optimizer] * len(models)
    built = fastnet.build(lambda: models, optimizers, **program.build_settings, **options)
    found = built if isinstance(built, list) else [built]
    for one in found:
        if isinstance(one, FSDPModule) and "find_unused_parameters" in program.options:
            one.set_reduce_scatter_unused_params(True)
    return found


def run_fastnet(
    program: Program, engine: str, batches: list[list[Batch]], wrapped_by: str
) -> list[dict[str, torch.Tensor]]:
    """Train with fastnet on this rank's batches, and evaluate after each two steps."""
    built = build(program, engine, wrapped_by)
    network = fastnet.Network(program.ops(built))
    rank = dist.get_rank()
    for first in range(0, len(batches), 2):
        program.before(built, first)
        epoch = 1 + first // 2
        with network("train", epoch):
            for parts in batches[first : first + 2]:
                network.run_step(parts[rank])
        with network("eval", epoch):
            network.run_step(batches[first][rank])
    return full_states([*built, *program.averages(network)])


def compare(name: str, engine: str) -> dict[str, Any]:
    """Run a program with fastnet, in a hand-written loop under the engine, and in one process."""
    program: Program = globals()[name]()
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = data(program.steps, world)
    torch.manual_seed(rank)
    results = {by: run_fastnet(program, engine, batches, by) for by in ("build", "user")}
    if program.has_loop:
        results["loop"] = run_by_hand(program, engine, batches)
    if program.has_one:
        results["one"] = run_by_hand(program, None, batches)
    return results


def run_by_hand(
    program: Program, engine: str | None, batches: list[list[Batch]]
) -> list[dict[str, torch.Tensor]]:
    """Train without fastnet on this rank's batches, or in one process on those of all ranks.

    Args:
        program: The program.
        engine: The engine; None for one process.
        batches: For each step a batch for each rank.
    """
    models = program.make()
    if engine is not None:
        models = [wrap(one, engine, program) for one in models]
    optimizers = [program.optimizer(one.parameters()) for one in models]
    average: list[dict[str, torch.Tensor]] = []
    for step, parts in enumerate(batches):
        if step % 2 == 0:
            program.before(models, step)
        if engine is not None:
            program.by_hand(models, optimizers, parts[dist.get_rank()], step)
        else:
            program.in_one(models, optimizers, parts, step)
        if isinstance(program, Averaged) and step % 2:
            (now,) = full_states(models)
            share = program.share(step // 2)
            before = average[0] if average else now
            average = [{key: before[key].lerp(now[key], 1 - share) for key in now}]
    return [*full_states(models), *average]
