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
    batches,
    captured,
    cross_entropy,
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

    def run(self, data: Iterable[Batch], **tolerances: float) -> None:
        """Train both, with the same random numbers, and compare losses and weights."""
        with self.network("train", 1):
            self.run_open(data, **tolerances)

    def run_open(
        self,
        data: Iterable[Batch],
        rtol: float = 1e-5,
        atol: float = 1e-6,
        of_largest: float = 1e-5,
    ) -> None:
        """As `run`, in a network that is open."""
        for batch in data:
            state = torch.get_rng_state()
            result = self.network.run_step(dict(batch))
            torch.set_rng_state(state)
            for key, loss in self.step(batch).items():
                torch.testing.assert_close(result[key], loss.detach(), rtol=rtol, atol=atol)
        for model, other in zip(self.models, self.copies, strict=True):
            assert_same_weights(model, other, of_largest=of_largest)


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
            place = index[None]
            old = self.images[place][0]
            shown.append(torch.where(swaps & ~is_filling, old, image))
            self.images[place] = torch.where(swaps, image, old)
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


def test_cycle_gan_with_a_list_of_images_leads_to_tensors() -> None:
    program = cycle_gan(QUICK, ListBuffer)
    with falls_back(program.network, ".images[4]; hold it in a tensor that is updated in place"):
        for batch in pairs(6):
            program.network.run_step(batch)


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
    return functional.mse_loss(image, content) + 100 * functional.mse_loss(gram(image), gram(style))


def style_transfer(compile: Any) -> Program:
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
    program = style_transfer(compile)
    one = seeded(1)
    batch = {key: torch.rand(1, 3, 12, 12, generator=one) for key in ("content", "style")}
    program.run([batch] * 15)
    assert captured(program.network) == 1


# --- sequences ------------------------------------------------------------------------------------


class Translator(nn.Module):
    """A transformer with a mask of the padding and a causal mask."""

    def __init__(self, is_causal: bool | None = True, masks_source: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 20)
        self.is_causal = is_causal
        self.masks_source = masks_source

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hints: dict[str, Any] = {}
        if self.is_causal is not None:
            hints["tgt_is_causal"] = self.is_causal
        if self.masks_source:
            length = source.shape[1]
            hints["src_mask"] = torch.zeros(length, length, dtype=torch.bool)
            if self.is_causal is not None:
                hints["src_is_causal"] = False
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


@pytest.mark.slow
@pytest.mark.parametrize("compile", BACKENDS)
def test_translation_with_masks_of_any_length(compile: Any) -> None:
    """Tracing all of `nn.Transformer` with symbols as lengths takes its time."""
    program = translation(compile)
    program.run(sentences(), rtol=1e-4)
    assert captured(program.network) == 1


def test_translation_without_a_hint_leads_to_the_argument() -> None:
    program = translation(QUICK, is_causal=None)
    with falls_back(program.network, "pass tgt_is_causal=True to the nn.Transformer if the mask"):
        program.run_open(sentences(2))
    program = translation(QUICK, is_causal=None, masks_source=True)
    with falls_back(program.network, "and tgt_is_causal likewise, if that mask is given, too"):
        program.run_open(sentences(2))
    program = translation(QUICK, masks_source=True)
    program.run(sentences()[:1] * 6, rtol=1e-4)
    assert captured(program.network) == 1


class Gpt(nn.Module):
    """A language model whose attention neither looks ahead nor at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden, _ = self.attention(
            *[self.norm(x)] * 3, attn_mask=later, key_padding_mask=tokens == 0, need_weights=False
        )
        return self.head(x + hidden)  # type: ignore[no-any-return]


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


def language_model(
    compile: Any, make: Callable[[], nn.Module] = Lstm, dynamic: Any = None
) -> Program:
    torch.manual_seed(0)
    model = build_model(make)
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
def test_language_model_with_masks_of_any_length(compile: Any) -> None:
    program = language_model(compile, Gpt, {"tokens": (0, 1)})
    program.run([{"tokens": batch["target"]} for batch in sentences(12)])
    assert captured(program.network) == 1


@pytest.mark.parametrize("compile", BACKENDS)
def test_lstm_language_model_with_dropout(compile: Any) -> None:
    program = language_model(compile)
    one = seeded()
    program.run([{"tokens": torch.randint(0, 20, (4, 7), generator=one)} for _ in range(12)])
    assert captured(program.network) == 1


def test_lstm_language_model_of_any_length() -> None:
    program = language_model(QUICK, dynamic={"tokens": (0, 1)})
    one = seeded()
    lengths = [5 + index % 4 for index in range(10)]
    program.run([{"tokens": torch.randint(0, 20, (4, n), generator=one)} for n in lengths])
    assert captured(program.network) == 1


# --- experts, graphs, tables ----------------------------------------------------------------------


class Experts(nn.Module):
    """A mixture of experts, of which the best two compute each row."""

    def __init__(self, routing: str) -> None:
        super().__init__()
        self.routing = routing
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        best, chosen = weights.topk(2, -1)
        result = torch.zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            is_chosen = (chosen == index).any(-1)
            if self.routing == "mask":
                result[is_chosen] += expert(x[is_chosen]) * weights[is_chosen, index : index + 1]
            elif self.routing == "indices":
                rows, place = torch.where(chosen == index)
                result.index_add_(0, rows, expert(x[rows]) * best[rows, place, None])
            elif self.routing == "where":
                part = expert(x) * weights[:, index : index + 1]
                result = result + torch.where(is_chosen[:, None], part, 0)
            else:
                result = result + expert(x) * weights[:, index : index + 1]
        return result


def experts(compile: Any, routing: str, of_loop: str) -> Program:
    torch.manual_seed(0)
    model = build_model(lambda: Experts(routing))
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(cross_entropy, ["pred", "y"], "loss"),
        UpdateOp(model, "loss"),
    ]
    (other,), (optimizer,) = copied(model)
    loop_model: Any = other
    loop_model.routing = of_loop
    return Program(TorchNetwork(ops, compile=compile), [model], [other], classify(other, optimizer))


def classify(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Batch], dict[str, Tensor]]:
    def step(batch: Batch) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch["x"]), batch["y"])
        backward_and_step(loss, optimizer)
        return {"loss": loss}

    return step


def test_experts_with_dense_gating() -> None:
    program = experts(QUICK, "dense", "dense")
    program.run(batches(12))
    assert captured(program.network) == 1


@pytest.mark.parametrize("routing", ["mask", "indices"])
def test_experts_that_are_sent_rows_lead_to_a_choice_among_all_results(routing: str) -> None:
    program = experts(QUICK, routing, routing)
    with falls_back(program.network, "how many elements there are; compute with all of them"):
        program.run_open(batches(3))
    program = experts(QUICK, "where", of_loop=routing)
    program.run(batches(12))
    assert captured(program.network) == 1


class MessagePassing(nn.Module):
    """Two rounds of messages along the edges of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(12, 6), nn.GRUCell(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for _ in range(2):
            messages = self.message(torch.cat([x[source], x[target]], -1)).relu()
            x = self.update(torch.zeros_like(x).index_add(0, target, messages), x)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("compile", BACKENDS)
def test_message_passing_with_any_numbers_of_nodes_and_edges(compile: Any) -> None:
    torch.manual_seed(0)
    model = build_model(MessagePassing)
    ops = [
        ModelOp(model, ["x", "edges"], "pred"),
        LambdaOp(cross_entropy, ["pred", "y"], "loss"),
        UpdateOp(model, "loss"),
    ]
    (other,), (optimizer,) = copied(model)

    def step(batch: Batch) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = cross_entropy(other(batch["x"], batch["edges"]), batch["y"])
        backward_and_step(loss, optimizer)
        return {"loss": loss}

    one = seeded()
    data = [
        {
            "x": torch.randn(nodes, 6, generator=one),
            "edges": torch.randint(nodes, (2, edges), generator=one),
            "y": torch.randint(3, (nodes,), generator=one),
        }
        for nodes, edges in [(7, 15), (9, 12), (4, 20), (5, 5), (12, 30), (6, 6), (3, 2), (8, 9)]
    ]
    axes = {"x": 0, "y": 0, "edges": 1}
    network = TorchNetwork(ops, dynamic=axes, compile=compile)
    program = Program(network, [model], [other], step)
    program.run(data, rtol=1e-4)
    assert captured(program.network) == 1


def table(compile: Any, sparse: bool, merge: int, optimizer: str = "adagrad") -> Program:
    torch.manual_seed(0)
    model = build_model(lambda: Table(sparse), optimizer)
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(cross_entropy, ["pred", "y"], "loss"),
        UpdateOp(model, "loss", merge_grad=merge),
    ]
    (other,), (own_optimizer,) = copied(model)
    steps = 0

    def step(batch: Batch) -> dict[str, Tensor]:
        nonlocal steps
        steps += 1
        loss = cross_entropy(other(batch["x"]), batch["y"])
        (loss / merge).backward()  # type: ignore[no-untyped-call]
        if steps % merge == 0:
            own_optimizer.step()
            own_optimizer.zero_grad()
        return {"loss": loss}

    return Program(TorchNetwork(ops, compile=compile), [model], [other], step)


class Table(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 3, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("merge", [1, 2])
def test_sparse_embeddings_with_adagrad_lead_to_dense_ones(merge: int) -> None:
    one = seeded()
    data = [
        {
            "x": torch.randint(30, (5, 2), generator=one),
            "y": torch.randint(3, (5,), generator=one),
        }
        for _ in range(12)
    ]
    program = table(QUICK, sparse=True, merge=merge)
    reason = "sparse; without sparse=True in nn.Embedding steps are compiled, but each updates the "
    with falls_back(program.network, reason):
        program.run_open(data)
    program = table(QUICK, sparse=False, merge=merge)
    program.run(data)
    assert captured(program.network) == merge


# --- precision ------------------------------------------------------------------------------------


def mixed(compile: Any, precision: str) -> Program:
    """A network, and a loop under autocast, with a GradScaler for float16."""
    torch.manual_seed(0)
    model = build_model(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)),
        "sgd",
        mixed_precision=precision,
    )
    ops = [
        ModelOp(model, "x", "pred"),
        LambdaOp(lambda pred, y: cross_entropy(pred.float(), y), ["pred", "y"], "loss"),
        UpdateOp(model, "loss"),
    ]
    (other,), (optimizer,) = copied(model)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")  # type: ignore[attr-defined]

    def step(batch: Batch) -> dict[str, Tensor]:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = cross_entropy(other(batch["x"]).float(), batch["y"])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss}

    return Program(TorchNetwork(ops, compile=compile), [model], [other], step)


@pytest.mark.parametrize("compile", BACKENDS)
def test_autocast_to_bfloat16(compile: Any) -> None:
    program = mixed(compile, "bf16")
    program.run(batches(15), rtol=2e-2, atol=2e-2, of_largest=2e-2)
    assert captured(program.network) == 1


def test_float16_with_a_grad_scaler_leads_to_bfloat16() -> None:
    program = mixed(QUICK, "fp16")
    with falls_back(program.network, 'mixed_precision="bfloat16" needs none'):
        program.run_open(batches(10))
