"""Ordinary models of images, text and other data, some of torchvision, timm and transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import fastnet
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}

Batch = dict[str, Tensor]


class Architecture(NamedTuple):
    """A model, or several, with ops that train it.

    Attributes:
        models: Returns what makes each model, by name.
        ops: Returns the ops, given the models.
        batch: Makes a batch of random data with a generator.
    """

    models: Callable[[], dict[str, Callable[[], nn.Module]]]
    ops: Callable[[dict[str, Any]], list[Any]]
    batch: Callable[[torch.Generator], Batch]

    def build(self, optimizer: str, seed: int) -> tuple[dict[str, Any], list[Any]]:
        """Build the models from a seed; return them and the ops."""
        torch.manual_seed(seed)
        models = {
            name: fastnet.build(make, OPTIMIZERS[optimizer], model_name=name)
            for name, make in self.models().items()
        }
        return models, self.ops(models)


def _supervised(
    make: Callable[[], nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    batch: Callable[[torch.Generator], Batch],
) -> Architecture:
    def ops(models: dict[str, Any]) -> list[Any]:
        return [
            ModelOp(models["model"], "x", "pred"),
            LambdaOp(loss, ["pred", "y"], "loss"),
            UpdateOp(models["model"], "loss"),
            LambdaOp(lambda pred: pred.argmax(-1), "pred", "best"),
        ]

    return Architecture(lambda: {"model": make}, ops, batch)


# --- data -----------------------------------------------------------------------------------------


def _images(count: int, side: int, generator: torch.Generator) -> Batch:
    return {
        "x": torch.randn(count, 3, side, side, generator=generator),
        "y": torch.randint(0, 10, (count,), generator=generator),
    }


def _text(count: int, length: int, words: int, labels: bool, generator: torch.Generator) -> Batch:
    shape = (count,) if labels else (count, length)
    return {
        "x": torch.randint(0, words, (count, length), generator=generator),
        "y": torch.randint(0, 10 if labels else words, shape, generator=generator),
    }


def _series(generator: torch.Generator) -> Batch:
    return {
        "x": torch.randn(16, 8, 64, generator=generator),
        "y": torch.randint(0, 10, (16,), generator=generator),
    }


def _digits(generator: torch.Generator) -> Batch:
    x = torch.rand(32, 784, generator=generator)
    return {"x": x, "y": (x > 0.5).float()}


def _pairs(generator: torch.Generator) -> Batch:
    return {name: torch.randn(8, 3, 32, 32, generator=generator) for name in ("x", "y")}


def _vectors(generator: torch.Generator) -> Batch:
    return {"x": torch.randn(32, 196, generator=generator)}


# --- models ---------------------------------------------------------------------------------------


def _of_torchvision(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> Any:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=10, **settings)

    return make


def _of_timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> Any:
        import timm

        return timm.create_model(name, num_classes=10, **settings)

    return make


class ResidualBlock(nn.Module):
    """Two convolutions beside a skip connection."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip = nn.Sequential()
        if stride > 1:
            skip = nn.Conv2d(width, out, 1, stride, bias=False)
            self.skip = nn.Sequential(skip, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def resnet(widths: Sequence[int] = (64, 128, 256, 512)) -> nn.Module:
    """Return a ResNet, by default the ResNet-18, for images of 32 x 32 pixels."""
    width = widths[0]
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    for out in widths:
        stride = 1 if out == width else 2
        layers += [ResidualBlock(width, out, stride), ResidualBlock(out, out, 1)]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class GPT(nn.Module):
    """A decoder of 64 tokens."""

    def __init__(self, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(64, width), nn.Embedding(32, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "attend": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "mlp": nn.Sequential(
                        nn.LayerNorm(width),
                        nn.Linear(width, 4 * width),
                        nn.GELU(),
                        nn.Linear(4 * width, width),
                    ),
                }
            )
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64))

    def forward(self, x: Tensor) -> Any:
        count, length = x.shape
        y = self.tokens(x) + self.places(torch.arange(length, device=x.device))
        for block in self.blocks:
            parts = block["attend"](block["norm"](y)).chunk(3, -1)  # type: ignore[index, operator]
            heads = (part.view(count, length, 4, -1).transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            mixed = mixed.transpose(1, 2).reshape(count, length, -1)
            y = y + self.dropout(block["out"](mixed))  # type: ignore[index, operator]
            y = y + self.dropout(block["mlp"](y))  # type: ignore[index, operator]
        return self.head(y)


class LSTM(nn.Module):
    """A classifier of sequences of 100 words."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 64, layers, batch_first=True, dropout=0.2 if layers > 1 else 0.0)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.lstm(self.tokens(x))[0][:, -1])


class _BERT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=200,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=10,
        )
        self.model = BertForSequenceClassification(config)

    def forward(self, x: Tensor) -> Any:
        return self.model(input_ids=x).logits


class _VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 32))
        self.decode = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784))

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encode(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return torch.cat([self.decode(code), mean, log_variance], 1)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self._block(3, 16), self._block(16, 32)
        self.up, self.head = self._block(48, 16), nn.Conv2d(16, 3, 1)

    def _block(self, width: int, out: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(width, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())

    def forward(self, x: Tensor) -> Any:
        wide = self.first(x)
        deep = functional.interpolate(self.second(functional.max_pool2d(wide, 2)), scale_factor=2)
        return self.head(self.up(torch.cat([wide, deep], 1)))


class _DiffusionBlock(nn.Module):
    """Two normalized convolutions beside a skip connection; the first adds the time's embedding."""

    def __init__(self, width: int, out: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1)
        )
        self.time = nn.Linear(time, out)
        self.second = nn.Sequential(
            nn.GroupNorm(8, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1)
        )
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = self.first(x) + self.time(time)[:, :, None, None]
        added: Tensor = self.skip(x) + self.second(inner)
        return added


class DiffusionUNet(nn.Module):
    """The U-Net of a diffusion model with attention at its bottom, here with a classifier's head.

    The time of each image is taken from its mean.
    """

    def __init__(self, width: int = 32, time: int = 64) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            [_DiffusionBlock(width, width, time), _DiffusionBlock(width, 2 * width, time)]
        )
        self.norm = nn.GroupNorm(8, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.middle = _DiffusionBlock(2 * width, 2 * width, time)
        self.up = nn.ModuleList(
            [_DiffusionBlock(4 * width, width, time), _DiffusionBlock(2 * width, width, time)]
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        time = self.time(x.mean((1, 2, 3))[:, None])
        x, passed = self.first(x), []
        for block in self.down:
            x = block(x, time)
            passed.append(x)
            x = functional.avg_pool2d(x, 2)
        places = self.norm(x).flatten(2).transpose(1, 2)
        mixed = self.attention(places, places, places, need_weights=False)[0]
        x = self.middle(x + mixed.transpose(1, 2).reshape(x.shape), time)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, passed.pop()], 1), time)
        return self.head(x.mean((2, 3)))


class GRU(nn.Module):
    """A classifier of sequences with a GRU of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.gru(x)[0][:, -1])


def _dilated() -> nn.Module:
    layers: list[nn.Module] = []
    for place in range(4):
        width = 32 if place else 8
        convolution = nn.Conv1d(width, 32, 3, padding=2**place, dilation=2**place)
        layers += [convolution, nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 10))


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 196), nn.Tanh()
    )


def _discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(196, 128), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(128, 1))


def _gan_ops(models: dict[str, Any]) -> list[Any]:
    generator, discriminator = models["generator"], models["discriminator"]
    real = functional.softplus
    return [
        LambdaOp(lambda x: torch.randn(len(x), 32, device=x.device), "x", "z"),
        ModelOp(generator, "z", "fake"),
        ModelOp(discriminator, "fake", "judged"),
        LambdaOp(lambda judged: real(-judged).mean(), "judged", "generator_loss"),
        LambdaOp(lambda fake: fake.detach(), "fake", "fixed"),
        ModelOp(discriminator, "fixed", "judged_fake"),
        ModelOp(discriminator, "x", "judged_real"),
        LambdaOp(
            lambda fake, true: real(fake).mean() + real(-true).mean(),
            ["judged_fake", "judged_real"],
            "discriminator_loss",
        ),
        UpdateOp(generator, "generator_loss"),
        UpdateOp(discriminator, "discriminator_loss"),
    ]


# --- losses ---------------------------------------------------------------------------------------

_cross_entropy: Any = functional.cross_entropy


def _of_words(pred: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(pred.flatten(0, 1), y.flatten())


def _of_vae(pred: Tensor, y: Tensor) -> Tensor:
    decoded, mean, log_variance = pred.split([784, 16, 16], 1)
    error = functional.binary_cross_entropy_with_logits(decoded, y, reduction="sum") / len(y)
    distance = 1 + log_variance - mean.square() - log_variance.exp()
    return error - 0.5 * distance.sum(1).mean()


def classifier(make: Callable[[], nn.Module], count: int, side: int) -> Architecture:
    """Train a model on batches of square images, given their number and side."""
    return _supervised(make, _cross_entropy, partial(_images, count, side))


def text_classifier(make: Callable[[], nn.Module]) -> Architecture:
    """Train a model on sequences of words."""
    return _supervised(make, _cross_entropy, partial(_text, 16, 20, 100, True))


def language_model(width: int, depth: int, dropout: float) -> Architecture:
    """Train a GPT to predict words."""
    make = partial(GPT, width, depth, dropout)
    return _supervised(make, _of_words, partial(_text, 8, 32, 64, False))


ARCHITECTURES = {
    "ResNet-18 for CIFAR, batch 8": classifier(resnet, 8, 32),
    "ResNet-18": classifier(_of_torchvision("resnet18"), 8, 64),
    "ShuffleNet v2": classifier(_of_torchvision("shufflenet_v2_x0_5"), 16, 32),
    "RegNet Y": classifier(_of_torchvision("regnet_y_400mf"), 8, 32),
    "MobileNet v2": classifier(_of_torchvision("mobilenet_v2"), 8, 32),
    "MobileNet v3": classifier(_of_torchvision("mobilenet_v3_small"), 8, 32),
    "SqueezeNet": classifier(_of_torchvision("squeezenet1_1"), 8, 64),
    "MNASNet": classifier(_of_torchvision("mnasnet0_5"), 8, 64),
    "VGG-11": classifier(_of_torchvision("vgg11_bn"), 4, 32),
    "EfficientNet Lite": classifier(_of_timm("efficientnet_lite0"), 8, 32),
    "ConvNeXt": classifier(_of_timm("convnext_atto", drop_path_rate=0.1), 8, 64),
    "ViT": classifier(_of_timm("vit_tiny_patch16_224", img_size=64, drop_rate=0.1, depth=4), 8, 64),
    "ResMLP": classifier(_of_timm("resmlp_12_224", img_size=64), 4, 64),
    "GPT, width 128": language_model(128, 3, 0.0),
    "GPT, width 256, dropout": language_model(256, 4, 0.1),
    "BERT": _supervised(_BERT, _cross_entropy, partial(_text, 8, 16, 200, True)),
    "LSTM": text_classifier(LSTM),
    "dilated convolutions": _supervised(_dilated, _cross_entropy, _series),
    "U-Net": _supervised(_UNet, functional.mse_loss, _pairs),
    "VAE": _supervised(_VAE, _of_vae, _digits),
    "GAN": Architecture(
        lambda: {"generator": _generator, "discriminator": _discriminator}, _gan_ops, _vectors
    ),
    "ResNet-18 for CIFAR, batch 32": classifier(resnet, 32, 32),
}
