"""The reasons why steps run eagerly lead to steps that are compiled."""

from __future__ import annotations

import functools
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fastnet import CompileOptions, build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import EMA, ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    batches,
    built,
    captured,
    cross_entropy,
    fallbacks,
    falls_back,
    network_of,
    run_both,
)

Function = Callable[[Tensor], Any]
GENERATOR = torch.Generator()


class Op(TensorOp):
    """Calls a function with itself, and holds what that needs."""

    def __init__(self, function: Callable[[Any, Tensor, Any], Any], **held: Any) -> None:
        super().__init__("x", "x")
        self.function = function
        vars(self).update(held)

    def forward(self, data: Tensor, state: Any) -> Any:
        return self.function(self, data, state)


def with_op(make: Callable[[], Any], compile: Any) -> TorchNetwork:
    """Return a network that trains a model, after an op that changes `x`."""
    model = built(lambda: nn.Linear(6, 3))
    return TorchNetwork([make(), *network_of(model).ops], compile=compile)


def leads_from(
    reason: str,
    refused: Callable[[Any], TorchNetwork],
    advised: Callable[[Any], TorchNetwork],
    data: list[dict[str, Any]] | None = None,
    programs: int = 1,
) -> None:
    """Assert that steps run eagerly for a reason, and are captured when it is followed."""
    network = refused(QUICK)
    with falls_back(network, reason):
        for batch in batches(4):
            network.run_step(batch)
    assert captured(run_both(advised, data or batches(6))) == programs


def leads_op_from(reason: str, refused: Callable[[], Any], advised: Callable[[], Any]) -> None:
    leads_from(
        reason,
        lambda compile: with_op(refused, compile),
        lambda compile: with_op(advised, compile),
    )


# --- values of tensors ----------------------------------------------------------------------------


def _assign(x: Tensor, place: Any) -> Tensor:
    result = x.clone()
    result[place] = 0
    return result


@torch.library.custom_op("fastnet_tests::sort_by_numpy", mutates_args=())
def sort_by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(x.numpy()))


@sort_by_numpy.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _last(x: Tensor) -> Tensor:
    """Return an index, as a tensor without axes."""
    return x[0].argmax()


@pytest.mark.parametrize(
    ("reason", "refused", "advised"),
    [
        (
            "choose by torch.where",
            lambda x: x * 2 if x.sum() > 0 else -x,
            lambda x: torch.where(x.sum() > 0, x * 2, -x),
        ),
        (
            "compute with the tensor itself",
            lambda x: x / x.norm().item(),
            lambda x: x / x.norm(),
        ),
        ("compute with the tensor itself", lambda x: x * float(x[0, 0]), lambda x: x * x[0, 0]),
        (
            "leave out by torch.where(mask, values, 0)",
            lambda x: x + x[x > 0].sum(),
            lambda x: x + torch.where(x > 0, x, 0).sum(),
        ),
        (
            "leave out by torch.where(mask, values, 0)",
            lambda x: x + x[(x > 0).nonzero(as_tuple=True)].sum(),
            lambda x: x + torch.where(x > 0, x, 0).sum(),
        ),
        (
            "leave out by torch.where(mask, values, 0)",
            lambda x: x + x.masked_select(x > 0).sum(),
            lambda x: x + torch.where(x > 0, x, 0).sum(),
        ),
        (
            "as by index[None]",
            lambda x: x + x[:, _last(x)][:, None],
            lambda x: x + x[:, _last(x)[None]],
        ),
        (
            "as by index[None]",
            lambda x: _assign(x.T, _last(x)).T,
            lambda x: _assign(x.T, _last(x)[None]).T,
        ),
        (
            "in place of a slice use torch.where(mask, values, 0)",
            lambda x: x + x[:, : _last(x)].sum(),
            lambda x: x + torch.where(torch.arange(6) < _last(x), x, 0).sum(),
        ),
        (
            "in a list; use torch.stack",
            lambda x: x + torch.tensor([x[0, 0], x[1, 1]]).sum(),
            lambda x: x + torch.stack([x[0, 0], x[1, 1]]).sum(),
        ),
        (
            "which is taken as a tuple; index with tensors of one axis",
            lambda x: x + x[[_last(x.T), _last(x)]].sum(),
            lambda x: x + x[_last(x.T)[None], _last(x)[None]].sum(),
        ),
        (
            "pass num_classes=",
            lambda x: x + functional.one_hot(x.abs().long()).sum(),
            lambda x: x + functional.one_hot(x.abs().long(), num_classes=9).sum(),
        ),
        (
            "use one_hot(x, num_classes).sum(0)",
            lambda x: x + torch.bincount(x.argmax(0), minlength=9).max(),
            lambda x: x + functional.one_hot(x.argmax(0), 9).sum(0).max(),
        ),
        (
            "pass output_size=",
            lambda x: torch.repeat_interleave(x, torch.tensor([2, 0, 1, 1, 1]), 0),
            lambda x: torch.repeat_interleave(x, torch.tensor([2, 0, 1, 1, 1]), 0, output_size=5),
        ),
        (
            "compute with torch",
            lambda x: torch.from_numpy(np.sort(x.numpy())),
            lambda x: x.sort().values,
        ),
        (
            "make a custom operator of it",
            lambda x: torch.from_numpy(np.sort(x.numpy())),
            sort_by_numpy,
        ),
    ],
)
def test_looking_at_values(reason: str, refused: Function, advised: Function) -> None:
    leads_op_from(
        reason,
        lambda: LambdaOp(refused, "x", "x"),
        lambda: LambdaOp(advised, "x", "x"),
    )


class Packed(nn.Module):
    """A classifier of the tokens of sequences, which may pack them."""

    def __init__(self, packs: bool) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)
        self.packs = packs

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 3, 2)
        lengths = torch.tensor([3, 2, 2, 1, 1])
        if self.packs:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            hidden, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        else:
            hidden, _ = self.layer(x)
        mask = torch.arange(3) < lengths[:, None]
        return (self.head(hidden) * mask[..., None]).sum(1)  # type: ignore[no-any-return]


def test_packed_sequences() -> None:
    def make(compile: Any, packs: bool) -> TorchNetwork:
        return network_of(built(lambda: Packed(packs)), compile)

    leads_from(
        "run the layer on padded ones, and leave out what it computes from padding",
        lambda compile: make(compile, True),
        # The network that runs eagerly packs.
        lambda compile: make(compile, not compile),
    )


class Encoder(nn.Module):
    """A classifier of sequences, the last of which have padding."""

    def __init__(self, has_mask: bool = False, **settings: Any) -> None:
        super().__init__()
        self.settings = {} if has_mask else settings
        self.hints = settings if has_mask else {}
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, **self.settings)
        self.has_mask = has_mask
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.stack([x, x.flip(1), -x], 1)
        if self.has_mask:
            mask = nn.Transformer.generate_square_subsequent_mask(3)
            hidden = self.encoder(tokens, mask=mask, **self.hints)
        else:
            padding = (x[:, :1] > 0) & torch.tensor([False, True, True])
            hidden = self.encoder(tokens, src_key_padding_mask=padding)
        return self.head(hidden.mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("by", ["argument", "setting"])
def test_an_encoder_that_leaves_out_padding(by: str) -> None:
    def make(compile: Any, **settings: Any) -> TorchNetwork:
        model = built(lambda: Encoder(**settings)).requires_grad_(False)
        return TorchNetwork(ModelOp(model, "x", "pred"), compile=compile)

    data = batches(4)
    for batch in data[:2]:
        batch["x"] = -batch["x"].abs()  # Without padding, so that verification finds nothing.
    network, eager = make(QUICK), make(False)
    reason = "leaves out the padding in evaluation mode"
    with falls_back(network, reason, "eval"), eager("eval", 1):
        for batch in data:
            assert torch.equal(network.run_step(batch)["pred"], eager.run_step(batch)["pred"])
    is_enabled = torch.backends.mha.get_fastpath_enabled()
    settings = {"enable_nested_tensor": False} if by == "argument" else {}
    try:
        if by == "setting":
            torch.backends.mha.set_fastpath_enabled(False)
        network, eager = make(QUICK, **settings), make(False, **settings)
        with network("eval", 1), eager("eval", 1):
            for batch in data:
                torch.testing.assert_close(network.run_step(batch), eager.run_step(batch))
    finally:
        torch.backends.mha.set_fastpath_enabled(is_enabled)
    assert captured(network) == 1


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_mask_of_an_encoder(is_causal: bool) -> None:
    def make(compile: Any, **hints: Any) -> TorchNetwork:
        return network_of(built(lambda: Encoder(has_mask=True, **hints)), compile)

    leads_from(
        "of a mask; pass is_causal=True to the nn.TransformerEncoder if the mask is causal",
        make,
        lambda compile: make(compile, is_causal=is_causal),
    )


# --- what ops keep and change ---------------------------------------------------------------------


def _count(op: Any, x: Tensor, state: Any) -> Tensor:
    op.count = op.count + 1
    return x * op.count


def _count_in_place(op: Any, x: Tensor, state: Any) -> Tensor:
    op.count += 1
    return x * op.count


def _average(op: Any, x: Tensor, state: Any) -> Tensor:
    op.average = op.average * 0.9 + x.mean() * 0.1
    return x - op.average


def _average_in_place(op: Any, x: Tensor, state: Any) -> Tensor:
    op.average.copy_(op.average * 0.9 + x.mean() * 0.1)
    return x - op.average


class Clamped(nn.Module):
    """Changes its weight, or a buffer, in each step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(()))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        match self.how:
            case "replace":
                self.count = self.count + 1
            case "add":
                self.count += 1
            case "data":
                weight.data = weight.data.clamp(-0.2, 0.2)
            case "copy":
                with torch.no_grad():
                    weight.copy_(weight.clamp(-0.2, 0.2))
        return self.layer(x) * self.count.exp()  # type: ignore[no-any-return]


@functools.cache
def _cached_mask(size: int) -> Tensor:
    return torch.ones(size, size).tril()


def _keep(op: Any, x: Tensor, state: Any) -> Tensor:
    op.kept.mul_(0.5).add_(x)
    return op.kept[:]  # type: ignore[no-any-return]


def _no_view(op: Any, x: Tensor, state: Any) -> Tensor:
    return _keep(op, x, state).clone()


@pytest.mark.parametrize(
    ("reason", "refused", "advised"),
    [
        (
            ".count; hold it in a tensor that is updated in place",
            lambda: Op(_count, count=0),
            lambda: Op(_count_in_place, count=torch.zeros((), dtype=torch.int64)),
        ),
        (
            ".average; hold it in a tensor that is updated in place",
            lambda: Op(_average, average=torch.zeros(())),
            lambda: Op(_average_in_place, average=torch.zeros(())),
        ),
        (
            "hold it as an attribute of the op",
            lambda: Op(lambda op, x, state: x @ _cached_mask(6)),
            lambda: Op(lambda op, x, state: x @ op.mask, mask=torch.ones(6, 6).tril()),
        ),
        (
            "writes into a tensor of the batch; return a new one",
            lambda: LambdaOp(lambda x: x.mul_(1.0), "x", "x"),
            lambda: LambdaOp(lambda x: x.mul(1.0), "x", "x"),
        ),
        (
            "a tensor that it keeps; return a clone",
            lambda: Op(lambda op, x, state: op.kept, kept=torch.ones(5, 6)),
            lambda: Op(lambda op, x, state: op.kept.clone(), kept=torch.ones(5, 6)),
        ),
        (
            "leads to too much data to compare in each step",
            lambda: Op(lambda op, x, state: x * op.data[3], data=[0.5] * 300_000),
            lambda: Op(lambda op, x, state: x * op.data[3], data=torch.full((300_000,), 0.5)),
        ),
        (
            "advances Python's global generator",
            lambda: LambdaOp(lambda x: x * random.random(), "x", "x"),
            lambda: LambdaOp(lambda x: x * torch.rand(()), "x", "x"),
        ),
        (
            "a generator of its own; draw from torch's default one",
            lambda: LambdaOp(lambda x: x + torch.rand(6, generator=GENERATOR), "x", "x"),
            lambda: LambdaOp(lambda x: x + torch.rand(6), "x", "x"),
        ),
        (
            "an op calls torch.compile, as torch.cond does; use torch.where",
            lambda: LambdaOp(
                lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,)), "x", "x"
            ),
            lambda: LambdaOp(lambda x: torch.where(x.sum() > 0, x * 2, -x), "x", "x"),
        ),
    ],
)
def test_ops(reason: str, refused: Callable[[], Any], advised: Callable[[], Any]) -> None:
    def seeded(make: Callable[[], Any]) -> Callable[[Any], TorchNetwork]:
        return lambda compile: with_op(make, compile)

    network = seeded(refused)(QUICK)
    with falls_back(network, reason):
        for batch in batches(4):
            network.run_step(batch)

    def seed(place: int, network: Any) -> None:
        torch.manual_seed(place)

    assert captured(run_both(seeded(advised), batches(6), seed)) == 1


@pytest.mark.parametrize(
    ("reason", "refused", "advised"),
    [
        ("buffer 'count'; write into it", "replace", "add"),
        ("gives a parameter or a buffer other memory; write into it", "data", "copy"),
    ],
)
def test_models_that_change_themselves(reason: str, refused: str, advised: str) -> None:
    leads_from(
        reason,
        lambda compile: network_of(built(lambda: Clamped(refused)), compile),
        lambda compile: network_of(built(lambda: Clamped(advised)), compile),
    )


@pytest.mark.parametrize("advice", ["model", "frozen"])
def test_modules_that_no_op_updates(advice: str) -> None:
    def make(compile: Any, advice: str = "") -> TorchNetwork:
        model, extra = built(), nn.Linear(6, 6)
        op: Any = LambdaOp(extra, "x", "x")
        if advice == "frozen":
            extra.requires_grad_(False)
        elif advice == "model":
            extra = build(lambda: extra, optimizer_fn=OPTIMIZERS["sgd"])
            op = ModelOp(extra, "x", "x")
        updates = [UpdateOp(extra, "loss")] if advice == "model" else []
        return TorchNetwork([op, *network_of(model).ops, *updates], compile=compile)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Trainable parameters")
        leads_from(
            "make its module a model (fastnet.build), or freeze it",
            make,
            lambda compile: make(compile, advice),
        )


def test_a_frozen_network_that_is_not_frozen() -> None:
    """Each eager step leaves gradients on its parameters, which nothing clears."""

    def make(compile: Any, is_frozen: bool) -> TorchNetwork:
        torch.manual_seed(0)
        features = build(lambda: nn.Linear(6, 6), optimizer_fn=None)
        features.requires_grad_(not is_frozen)
        ops = [ModelOp(features, "z", "x", trainable=False), *network_of(built()).ops]
        before = LambdaOp(nn.Identity(), "x", "z")
        return TorchNetwork([before, *ops], compile=compile)

    leads_from(
        "has a gradient that no op uses; freeze it by requires_grad_(False)",
        lambda compile: make(compile, False),
        lambda compile: make(compile, True),
    )


# --- the state of the step, optimizers, hooks -----------------------------------------------------


def test_the_epoch_as_a_tensor_of_the_batch() -> None:
    class Reads(TensorOp):
        def forward(self, data: Any, state: Any) -> Tensor:
            x, epoch = data if isinstance(data, list) else (data, state["epoch"])
            return x * epoch  # type: ignore[no-any-return]

    data = [{**batch, "epoch": torch.tensor(i)} for i, batch in enumerate(batches(6))]
    leads_from(
        "reads the epoch, which a program would not do again",
        lambda compile: with_op(lambda: Reads("x", "x"), compile),
        lambda compile: with_op(lambda: Reads(["x", "epoch"], "x"), compile),
        data,
    )


def test_seeds_outside_of_the_ops() -> None:
    def refused(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return x + torch.rand(6)

    network = with_op(lambda: LambdaOp(refused, "x", "x"), QUICK)
    with falls_back(network, "seed, fork or restore torch's random state"):
        for batch in batches(3):
            network.run_step(batch)
    network = run_both(
        lambda compile: with_op(lambda: LambdaOp(lambda x: x + torch.rand(6), "x", "x"), compile),
        batches(6),
        lambda place, network: torch.manual_seed(3),
    )
    assert captured(network) == 1


class Checkpointed(nn.Module):
    """A network with a checkpoint, in or after which there is dropout."""

    def __init__(self, is_inside: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.dropout = nn.Dropout(0.3)
        self.is_inside = is_inside

    def forward(self, x: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            hidden = self.first(x).relu()
            return self.dropout(hidden) if self.is_inside else hidden  # type: ignore[no-any-return]

        preserves = self.is_inside
        hidden: Any = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserves)
        return self.second(hidden if self.is_inside else self.dropout(hidden))  # type: ignore[no-any-return]


def test_dropout_in_a_checkpoint() -> None:
    network = network_of(built(lambda: Checkpointed(True)), QUICK)
    with falls_back(network, "pass preserve_rng_state=False to checkpoints, with dropout outside"):
        for batch in batches(3):
            network.run_step(batch)
    network = run_both(
        lambda compile: network_of(built(lambda: Checkpointed(False)), compile),
        batches(6),
        lambda place, network: torch.manual_seed(place),
    )
    assert captured(network) == 1


def test_hooks_on_modules_in_place_of_those_of_all() -> None:
    seen: list[Any] = []

    def double(module: Any, args: Any, result: Any) -> Any:
        return result * 2 if isinstance(module, nn.Linear) else None

    network = network_of(built(lambda: nn.Linear(6, 3)))
    handle = nn.modules.module.register_module_forward_hook(double)
    try:
        with falls_back(network, "hooks around the passes of all modules"):
            for batch in batches(3):
                network.run_step(batch)
    finally:
        handle.remove()

    def make(compile: Any) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))
        model.register_forward_hook(double)
        return network_of(model, compile)

    assert captured(run_both(make, batches(5))) == 1
    assert seen == []


def test_a_part_of_a_parameter_is_cloned() -> None:
    class Parts(nn.Module):
        def __init__(self, clones: bool) -> None:
            super().__init__()
            self.layer, self.clones = nn.Linear(6, 3), clones

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            part = self.layer.weight[0]
            return self.layer(x), part.clone() if self.clones else part

    def make(compile: Any, clones: bool) -> TorchNetwork:
        model = built(lambda: Parts(clones))
        ops = network_of(model).ops
        return TorchNetwork([ModelOp(model, "x", ["pred", "part"]), *ops[1:]], compile=compile)

    leads_from(
        "in its memory; clone it",
        lambda compile: make(compile, False),
        lambda compile: make(compile, True),
    )


class Own(torch.optim.SGD):
    """An optimizer of the program."""


def test_optimizers_of_torch_in_place_of_others() -> None:
    leads_from(
        "the optimizer is Own; only SGD, ",
        lambda compile: network_of(built(optimizer=lambda ps: Own(ps, lr=0.1)), compile),
        lambda compile: network_of(
            built(optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1)), compile
        ),
    )


def test_sparse_adam_in_place_of_which_is_adam() -> None:
    def make(compile: Any, sparse: bool) -> TorchNetwork:
        optimizer = torch.optim.SparseAdam if sparse else torch.optim.Adam
        model = built(
            lambda: nn.Embedding(9, 3, sparse=sparse), lambda ps: optimizer(list(ps), lr=0.01)
        )
        ops = [
            LambdaOp(lambda x: x.argmax(1), "x", "x"),
            ModelOp(model, "x", "pred"),
            LambdaOp(cross_entropy, ["pred", "y"], "loss"),
            UpdateOp(model, "loss"),
        ]
        return TorchNetwork(ops, compile=compile)

    leads_from(
        "updates by sparse gradients; with Adam, and without sparse=True in nn.Embedding steps are",
        lambda compile: make(compile, True),
        lambda compile: make(compile, False),
    )


def test_an_average_of_a_model_that_never_skips() -> None:
    def make(compile: Any, **settings: Any) -> TorchNetwork:
        model = built()
        *ops, _ = network_of(model).ops
        update = UpdateOp(model, "loss", **settings)
        return TorchNetwork([*ops, update, EMA(model, decay=0.5)], compile=compile)

    leads_from(
        "which may skip a step because of `weight` or `skip_nonfinite`",
        lambda compile: make(compile, skip_nonfinite=True),
        make,
    )


def test_float16_in_place_of_which_is_bfloat16() -> None:
    def make(compile: Any, precision: str) -> TorchNetwork:
        torch.manual_seed(0)
        model = build(
            lambda: nn.Linear(6, 3), optimizer_fn=OPTIMIZERS["sgd"], mixed_precision=precision
        )
        loss = LambdaOp(lambda p, y: cross_entropy(p.float(), y), ["pred", "y"], "loss")
        ops = [ModelOp(model, "x", "pred"), loss, UpdateOp(model, "loss")]
        return TorchNetwork(ops, compile=compile)

    leads_from(
        'the loss is scaled by a GradScaler, whose scale is read in each step; mixed_precision="b',
        lambda compile: make(compile, "float16"),
        lambda compile: make(compile, "bfloat16"),
    )


def test_numbers_of_python_as_tensors_of_the_batch() -> None:
    def share(x: Tensor) -> Tensor:
        return x * (time.perf_counter() * 1000 % 1)

    def make(compile: Any) -> TorchNetwork:
        op = LambdaOp(lambda x, share: x * share, ["x", "share"], "x")
        return TorchNetwork([op, *network_of(built(lambda: nn.Linear(6, 3))).ops], compile=compile)

    shares = torch.rand(6, generator=torch.Generator().manual_seed(0))
    leads_from(
        "a step of the program gave other results than the same step run eagerly",
        lambda compile: with_op(lambda: LambdaOp(share, "x", "x"), compile),
        make,
        [{**batch, "share": share} for batch, share in zip(batches(6), shares, strict=True)],
    )


def test_devices_of_tensors_in_place_of_a_default_one() -> None:
    network = with_op(lambda: LambdaOp(lambda x: x + torch.ones(6), "x", "x"), QUICK)
    torch.set_default_device("cpu")
    try:
        with falls_back(network, "a mode is active while steps run"):
            network.run_step(batches(1)[0])
    finally:
        torch.set_default_device(None)
    op = LambdaOp(lambda x: x + torch.ones(6, device="cpu"), "x", "x")
    assert captured(run_both(lambda compile: with_op(lambda: op, compile), batches(4))) == 1


def test_settings_of_an_optimizer_in_the_loop() -> None:
    def make(compile: Any, is_op: bool) -> TorchNetwork:
        model = built(lambda: nn.Linear(6, 3))

        def halve(x: Tensor) -> Tensor:
            model.current_optimizer.param_groups[0]["lr"] *= 0.5
            return x

        ops = network_of(model).ops
        return TorchNetwork(
            [*([LambdaOp(halve, "x", "x")] if is_op else []), *ops], compile=compile
        )

    def halve(place: int, network: Any) -> None:
        network.models[0].current_optimizer.param_groups[0]["lr"] *= 0.5

    network = make(QUICK, True)
    with falls_back(network, "the settings of an optimizer; do so in the loop, or by LRSchedule"):
        for batch in batches(3):
            network.run_step(batch)
    assert captured(run_both(lambda compile: make(compile, False), batches(6), halve)) == 1


def test_a_network_in_a_network() -> None:
    def make(compile: Any, nests: bool) -> TorchNetwork:
        double = LambdaOp(lambda x: x * 2, "x", "x")
        inner = TorchNetwork([double])
        op = Op(lambda op, x, state: op.inner.transform({"x": x}, "infer")["x"], inner=inner)
        ops = network_of(built(lambda: nn.Linear(6, 3))).ops
        return TorchNetwork([op if nests else double, *ops], compile=compile)

    leads_from(
        "an op runs another network",
        lambda compile: make(compile, True),
        lambda compile: make(compile, False),
    )


def test_a_view_of_what_an_op_keeps() -> None:
    leads_op_from(
        "an op returns a view of a tensor that it holds and writes to; return a clone",
        lambda: Op(_keep, kept=torch.zeros(5, 6)),
        lambda: Op(_no_view, kept=torch.zeros(5, 6)),
    )


def test_number_that_decides_a_branch_as_a_tensor() -> None:
    class Clip(TensorOp):
        def __init__(self, limit: Any) -> None:
            super().__init__("x", "y")
            self.limit = limit

        def forward(self, data: Tensor, state: Any) -> Tensor:
            if isinstance(self.limit, Tensor):
                return torch.where(self.limit > 1, data.clamp(max=self.limit), data)
            return data.clamp(max=self.limit) if self.limit > 1 else data

    def run(limit: Any, change: Callable[[Any, float], None]) -> TorchNetwork:
        op = Clip(limit)
        network = TorchNetwork([op], compile=QUICK)
        with network("infer", 1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place, value in enumerate([0.5, 0.5, 1.5, 0.25, 1.25, 1.75]):
                change(op, value)
                x = batches(1, seed=place)[0]["x"]
                expected = x.clamp(max=value) if value > 1 else x
                assert torch.equal(network.run_step({"x": x})["y"], expected)
        return network

    network = run(0.5, lambda op, value: setattr(op, "limit", value))
    assert "keeps changing, and each value would be compiled, because" in fallbacks(network)[0]
    assert "hold it in a tensor" in fallbacks(network)[0]
    assert captured(run(torch.tensor(0.5), lambda op, value: op.limit.fill_(value))) == 1


def test_more_signatures_than_programs() -> None:
    def run(**settings: Any) -> TorchNetwork:
        options = CompileOptions("eager", max_programs=settings.pop("max_programs", 2))
        network = TorchNetwork([LambdaOp(abs, "x", "y")], compile=options, **settings)
        with network("infer", 1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for length in (2, 3, 4, 2, 3, 4):
                network.run_step({"x": torch.ones(2, length)})
        return network

    assert "there are more than 2 input signatures" in fallbacks(run())[0]
    assert captured(run(max_programs=3)) == 3
    assert captured(run(dynamic={"x": (0, 1)})) == 1
