"""Programs of the kinds that people train, compiled: each step is whole, and equals the loop."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fastnet import CompileOptions, build
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    assert_same_weights,
    captured,
    falls_back,
)
from tests.network.torch.compiled.test_inductor import by_inductor

Batch = dict[str, Tensor]
BACKENDS = [
    pytest.param(QUICK, id="eager"),
    pytest.param(
        CompileOptions(fallback_random=True), marks=[pytest.mark.slow, by_inductor], id="inductor"
    ),
]


@dataclass
class Program:
    """A network, and the same training as a loop.

    Attributes:
        network: The network.
        models: Its models.
        copies: Copies of these, which the loop trains.
        step: Takes a step of the loop, and returns its losses by their keys in the network.
    """

    network: TorchNetwork
    models: Sequence[nn.Module]
    copies: Sequence[nn.Module]
    step: Callable[[Batch], dict[str, Tensor]]

    def run(self, data: Iterable[Batch], rtol: float = 1e-5, atol: float = 1e-6) -> None:
        """Train both, with the same random numbers, and compare losses and weights."""
        with self.network("train", 1):
            self.run_open(data, rtol, atol)

    def run_open(self, data: Iterable[Batch], rtol: float = 1e-5, atol: float = 1e-6) -> None:
        """As `run`, in a network that is open."""
        for batch in data:
            state = torch.get_rng_state()
            result = self.network.run_step(dict(batch))
            torch.set_rng_state(state)
            for key, loss in self.step(batch).items():
                torch.testing.assert_close(result[key], loss.detach(), rtol=rtol, atol=atol)
        for model, other in zip(self.models, self.copies, strict=True):
            assert_same_weights(model, other, of_largest=1e-5)


def build_model(make: Callable[[], nn.Module], optimizer: Any = "adam", **settings: Any) -> Any:
    return build(make, optimizer_fn=OPTIMIZERS.get(optimizer, optimizer), **settings)


def copied(*models: Any) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """Return copies of models, and an optimizer of each like that of the model."""
    copies = [copy.deepcopy(model) for model in models]
    optimizers = []
    for model, other in zip(models, copies, strict=True):
        optimizer = model.current_optimizer
        settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        optimizers.append(type(optimizer)(other.parameters(), **settings))
    return copies, optimizers


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def backward_and_step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


# --- several models -------------------------------------------------------------------------------


def generator() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6))


def discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(12, 1))


def is_real(pred: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(pred, torch.ones_like(pred))


def is_fake(pred: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(pred, torch.zeros_like(pred))


def critic_loss(of_fake: Tensor, of_real: Tensor) -> Tensor:
    return is_fake(of_fake) + is_real(of_real)


def gan_batches(count: int = 10, noises: int = 1) -> list[Batch]:
    one = seeded()
    return [
        {
            "x": torch.randn(8, 6, generator=one),
            **{f"z{i}": torch.randn(8, 4, generator=one) for i in range(noises)},
        }
        for _ in range(count)
    ]


def gan_with_several_critic_updates(compile: Any, critics: int = 3) -> Program:
    torch.manual_seed(0)
    g, d = build_model(generator), build_model(discriminator)
    ops: list[Any] = []
    for index in range(critics):
        ops += [
            ModelOp(g, f"z{index}", "fake", gradients=True),
            LambdaOp(lambda x: x.detach(), "fake", "fixed"),
            ModelOp(d, "fixed", "of_fake"),
            ModelOp(d, "x", "of_real"),
            LambdaOp(critic_loss, ["of_fake", "of_real"], f"d_loss{index}"),
            UpdateOp(d, f"d_loss{index}"),
        ]
    ops += [
        ModelOp(g, f"z{critics}", "fake"),
        ModelOp(d, "fake", "of_fake"),
        LambdaOp(is_real, "of_fake", "g_loss"),
        UpdateOp(g, "g_loss"),
    ]
    copies, (g_optimizer, d_optimizer) = copied(g, d)
    h, e = copies

    def step(batch: Batch) -> dict[str, Tensor]:
        losses = {}
        for index in range(critics):
            d_optimizer.zero_grad()
            fake = h(batch[f"z{index}"]).detach()
            losses[f"d_loss{index}"] = critic_loss(e(fake), e(batch["x"]))
            backward_and_step(losses[f"d_loss{index}"], d_optimizer)
        g_optimizer.zero_grad()
        losses["g_loss"] = is_real(e(h(batch[f"z{critics}"])))
        backward_and_step(losses["g_loss"], g_optimizer)
        return losses

    return Program(TorchNetwork(ops, compile=compile), [g, d], copies, step)


def gan_with_generator_first(compile: Any, detaches: bool = False) -> Program:
    """The generator is updated, and then the discriminator's loss is computed from its images."""
    torch.manual_seed(0)
    g, d = build_model(generator), build_model(discriminator)
    detached = [LambdaOp(lambda x: x.detach(), "fake", "fake")] if detaches else []
    ops = [
        ModelOp(g, "z0", "fake"),
        ModelOp(d, "fake", "judged"),
        LambdaOp(is_real, "judged", "g_loss"),
        UpdateOp(g, "g_loss"),
        *detached,
        ModelOp(d, "fake", "of_fake"),
        ModelOp(d, "x", "of_real"),
        LambdaOp(critic_loss, ["of_fake", "of_real"], "d_loss"),
        UpdateOp(d, "d_loss"),
    ]
    copies, (g_optimizer, d_optimizer) = copied(g, d)
    h, e = copies

    def step(batch: Batch) -> dict[str, Tensor]:
        g_optimizer.zero_grad()
        fake = h(batch["z0"])
        g_loss = is_real(e(fake))
        backward_and_step(g_loss, g_optimizer)
        d_optimizer.zero_grad()
        d_loss = critic_loss(e(fake.detach()), e(batch["x"]))
        backward_and_step(d_loss, d_optimizer)
        return {"g_loss": g_loss, "d_loss": d_loss}

    return Program(TorchNetwork(ops, compile=compile), [g, d], copies, step)


@pytest.mark.parametrize("compile", BACKENDS)
def test_gan_with_several_updates_of_the_discriminator(compile: Any) -> None:
    program = gan_with_several_critic_updates(compile)
    program.run(gan_batches(noises=4))
    assert captured(program.network) == 1


@pytest.mark.parametrize("detaches", [False, True])
def test_gan_whose_generator_is_updated_first(detaches: bool) -> None:
    program = gan_with_generator_first(QUICK, detaches)
    program.run(gan_batches())
    assert captured(program.network) == 1


class ListBuffer(TensorOp):
    """The image buffer of CycleGAN as it is usually written: a list, and Python's numbers."""

    def __init__(self, size: int = 10) -> None:
        super().__init__("fake", "shown")
        self.size = size
        self.images: list[Tensor] = []

    def forward(self, data: Tensor, state: Any) -> Tensor:
        shown = []
        for image in data.detach():
            if len(self.images) < self.size:
                self.images.append(image)
                shown.append(image)
            elif random.random() > 0.5:
                index = random.randrange(self.size)
                shown.append(self.images[index].clone())
                self.images[index] = image
            else:
                shown.append(image)
        return torch.stack(shown)


class TensorBuffer(TensorOp):
    """The same with tensors that are updated in place, and numbers that torch draws."""

    def __init__(self, size: int = 10, width: int = 6) -> None:
        super().__init__("fake", "shown")
        self.images = torch.zeros(size, width)
        self.count = torch.zeros((), dtype=torch.int64)

    def forward(self, data: Tensor, state: Any) -> Tensor:
        size, shown = len(self.images), []
        for image in data.detach():
            is_filling = self.count < size
            index = torch.where(is_filling, self.count, torch.randint(size, ())).clamp(max=size - 1)
            swaps = is_filling | (torch.rand(()) > 0.5)
            old = self.images[index]
            shown.append(torch.where(swaps & ~is_filling, old, image))
            self.images[index] = torch.where(swaps, image, old)
            self.count += is_filling
        return torch.stack(shown)


def cycle_gan(compile: Any, make_buffer: Callable[[], TensorOp]) -> Program:
    torch.manual_seed(0)
    forward, back = (build_model(lambda: nn.Linear(6, 6)) for _ in range(2))
    d = build_model(lambda: nn.Linear(6, 1))
    buffer = make_buffer()
    ops = [
        ModelOp(forward, "x", "fake"),
        ModelOp(back, "fake", "cycle"),
        ModelOp(d, "fake", "of_fake"),
        LambdaOp(_cycle_loss, ["of_fake", "cycle", "x"], "g_loss"),
        UpdateOp(forward, "g_loss"),
        UpdateOp(back, "g_loss"),
        buffer,
        ModelOp(d, "shown", "of_shown"),
        ModelOp(d, "y", "of_real"),
        LambdaOp(critic_loss, ["of_shown", "of_real"], "d_loss"),
        UpdateOp(d, "d_loss"),
    ]
    copies, optimizers = copied(forward, back, d)
    f, b, e = copies
    own_buffer = copy.deepcopy(buffer)

    def step(batch: Batch) -> dict[str, Tensor]:
        for optimizer in optimizers:
            optimizer.zero_grad()
        fake = f(batch["x"])
        g_loss = _cycle_loss(e(fake), b(fake), batch["x"])
        g_loss.backward()  # type: ignore[no-untyped-call]
        optimizers[0].step()
        optimizers[1].step()
        optimizers[2].zero_grad()
        d_loss = critic_loss(e(own_buffer.forward(fake, {})), e(batch["y"]))
        backward_and_step(d_loss, optimizers[2])
        return {"g_loss": g_loss, "d_loss": d_loss}

    return Program(TorchNetwork(ops, compile=compile), [forward, back, d], copies, step)


def _cycle_loss(of_fake: Tensor, cycle: Tensor, x: Tensor) -> Tensor:
    return is_real(of_fake) + 10 * functional.l1_loss(cycle, x)


def pairs(count: int = 12) -> list[Batch]:
    one = seeded()
    return [{key: torch.randn(4, 6, generator=one) for key in "xy"} for _ in range(count)]


def test_cycle_gan_with_a_buffer_of_images() -> None:
    program = cycle_gan(QUICK, TensorBuffer)
    program.run(pairs())
    assert captured(program.network) == 1


@pytest.mark.parametrize("compile", BACKENDS)
def test_x(compile: Any) -> None:
    program = cycle_gan(QUICK, ListBuffer)
    random.seed(0)
    with program.network("train", 1):
        for batch in pairs():
            program.network.run_step(batch)
    print(program.network.traces)


# --- frozen networks ------------------------------------------------------------------------------


class Image(nn.Module):
    """An image that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Parameter(torch.rand(1, 3, 12, 12, generator=seeded()))

    def forward(self, content: Tensor) -> Tensor:
        return self.image


def features() -> nn.Module:
    layers = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3)
    )
    return layers.requires_grad_(False)


def gram(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return flat @ flat.mT / flat[0].numel()


def style_loss(image: Tensor, content: Tensor, style: Tensor) -> Tensor:
    return functional.mse_loss(image, content) + 100 * functional.mse_loss(
        gram(image), gram(style)
    )


def style_transfer(compile: Any, returns: str) -> Program:
    """The image is a parameter, and the result of its model."""
    torch.manual_seed(0)
    image, net = build_model(Image), build_model(features, None)
    ops = [
        ModelOp(image, "content", "image"),
        ModelOp(net, "content", "content_features", trainable=False, gradients=False),
        ModelOp(net, "style", "style_features", trainable=False, gradients=False),
        ModelOp(net, "image", "features", trainable=False),
        LambdaOp(style_loss, ["features", "content_features", "style_features"], "loss"),
        UpdateOp(image, "loss"),
    ]
    (other,), (optimizer,) = copied(image)

    def step(batch: Batch) -> dict[str, Tensor]:
        optimizer.zero_grad()
        with torch.no_grad():
            content, style = net(batch["content"]), net(batch["style"])
        loss = style_loss(net(other(batch["content"])), content, style)
        backward_and_step(loss, optimizer)
        return {"loss": loss}

    return Program(TorchNetwork(ops, compile=compile), [image], [other], step)


@pytest.mark.parametrize("compile", BACKENDS)
def test_style_transfer_through_a_frozen_network(compile: Any) -> None:
    program = style_transfer(compile, "")
    one = seeded(1)
    batch = {key: torch.rand(1, 3, 12, 12, generator=one) for key in ("content", "style")}
    program.run([batch] * 15)
    assert captured(program.network) == 1


# --- sequences ------------------------------------------------------------------------------------


class Translator(nn.Module):
    """A transformer with a mask of the padding and a causal mask."""

    def __init__(self, is_causal: bool | None = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.is_causal = is_causal

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hints = {} if self.is_causal is None else {"tgt_is_causal": self.is_causal}
        hidden = self.transformer(
            self.embedding(source),
            self.embedding(target),
            tgt_mask=mask,
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=(target == 0),
            memory_key_padding_mask=source == 0,
            **hints,
        )
        return self.head(hidden)  # type: ignore[no-any-return]


def next_token_loss(pred: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(
        pred[:, :-1].flatten(0, 1), target[:, 1:].flatten(), ignore_index=0
    )


def translation(compile: Any, **settings: Any) -> Program:
    torch.manual_seed(0)
    model = build_model(lambda: Translator(**settings))
    ops = [
        ModelOp(model, ["source", "target"], "pred"),
        LambdaOp(next_token_loss, ["pred", "target"], "loss"),
        UpdateOp(model, "loss", clip_norm=1.0),
    ]
    (other,), (optimizer,) = copied(model)

    def step(batch: Batch) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = next_token_loss(other(batch["source"], batch["target"]), batch["target"])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss}

    lengths = {"source": (0, 1), "target": (0, 1)}
    network = TorchNetwork(ops, dynamic=lengths, compile=compile)
    return Program(network, [model], [other], step)


def sentences(count: int = 10) -> list[Batch]:
    one = seeded()

    def padded(size: int, length: int) -> Tensor:
        tokens = torch.randint(1, 20, (size, length), generator=one)
        lengths = torch.randint(2, length + 1, (size, 1), generator=one)
        return tokens * (torch.arange(length) < lengths)

    return [
        {"source": padded(4 + i % 3, 5 + i % 4), "target": padded(4 + i % 3, 9 - i % 4)}
        for i in range(count)
    ]


@pytest.mark.parametrize("compile", BACKENDS)
def test_transformer_with_masks(compile: Any) -> None:
    program = translation(compile)
    program.run(sentences(), rtol=1e-4)
    assert captured(program.network) == 1


class Lstm(nn.Module):
    """A language model with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.lstm = nn.LSTM(12, 12, 2, dropout=0.2, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(12, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.dropout(self.embedding(tokens)))
        return self.head(self.dropout(hidden))  # type: ignore[no-any-return]


def language_model(compile: Any, dynamic: Any = None) -> Program:
    torch.manual_seed(0)
    model = build_model(Lstm)
    ops = [
        ModelOp(model, "tokens", "pred"),
        LambdaOp(next_token_loss, ["pred", "tokens"], "loss"),
        UpdateOp(model, "loss", clip_norm=0.5),
    ]
    (other,), (optimizer,) = copied(model)

    def step(batch: Batch) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = next_token_loss(other(batch["tokens"]), batch["tokens"])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss}

    network = TorchNetwork(ops, dynamic=dynamic, compile=compile)
    return Program(network, [model], [other], step)


@pytest.mark.parametrize("compile", BACKENDS)
def test_lstm_language_model_with_dropout(compile: Any) -> None:
    program = language_model(compile)
    one = seeded()
    program.run([{"tokens": torch.randint(0, 20, (4, 7), generator=one)} for _ in range(12)])
    assert captured(program.network) == 1

def test_lstm_dyn() -> None:
    program = language_model(QUICK, {"tokens": (0, 1)})
    one = seeded()
    program.run([{"tokens": torch.randint(0, 20, (4, 5+i%4), generator=one)} for i in range(12)])
    print(program.network.traces)
    assert captured(program.network) == 1
