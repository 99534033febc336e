"""Steps in PyTorch that are compiled as a whole, beside the eager loop and other compilers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.workloads import torch_models
from bench.workloads.torch_models import Supervised
from bench.workloads.workload import Goal, Workload, weights

if TYPE_CHECKING:
    import torch
    from torch import nn

_COMPILERS = frozenset(
    {"bare", "bare_fused", "fastnet"}
    | {"compiled_model", "compiled_update", "compiled_loop", "jax_step"}
)
# Compilers change the order of sums.
_TOLERANCE = (1e-4, 1e-5)
_WORDS = 100


@dataclass(frozen=True)
class Compiled(Supervised):
    """A compiled step of one model.

    Attributes:
        is_deep: Whether the model has so many layers that rounding errors grow.
    """

    is_deep: bool = False

    only: ClassVar[frozenset[str] | None] = _COMPILERS
    tolerance: ClassVar[tuple[float, float]] = _TOLERANCE

    def assert_close(self, expected: Any, result: Any, name: str) -> None:
        """Compare two tensors; after steps of Adam, and of deep models, by their norms.

        Adam divides by the size of gradients, so that the smallest, which may consist of rounding
        errors, move a weight as far as others do.
        """
        if not (self.adam or self.is_deep):
            super().assert_close(expected, result, name)
            return
        _assert_near(expected, result, 1e-2 * np.linalg.norm(np.asarray(expected)), name)

    def check_weights(self, expected: Any, result: Any) -> None:
        """Raise `AssertionError` unless two models have moved alike.

        The gradient of a weight may consist of rounding errors alone, such as that of the bias of
        attention's keys. By Adam it still moves, and is allowed the error of a usual weight.
        """
        if not (self.adam or self.is_deep):
            super().check_weights(expected, result)
            return
        start, others, own = map(weights, (self.model(), expected, result))
        moves = [other - before for other, before in zip(others, start, strict=True)]
        usual = np.sqrt(np.mean(np.square(np.concatenate([move.ravel() for move in moves]))))
        for index, (other, mine, move) in enumerate(zip(others, own, moves, strict=True)):
            length = np.linalg.norm(move)
            if self.adam:
                length = max(length, usual * np.sqrt(move.size))
            # In a ResNet-18, torch.compile's first convolution moves by 7 % differently.
            _assert_near(other, mine, (1e-1 if self.is_deep else 5e-2) * length, f"weight {index}")

    @property
    def takes_long(self) -> bool:
        """All but the steps of the small MLP with SGD take long to compile."""
        return self.layers is not torch_models.mlp or self.adam


def _assert_near(expected: Any, result: Any, limit: float, name: str) -> None:
    """Raise `AssertionError` if the norm of the difference of two arrays exceeds a limit."""
    difference = np.linalg.norm(np.asarray(result) - np.asarray(expected))
    assert difference <= limit, f"{name} is off by {difference:.3g}, more than {limit:.3g}"


@dataclass(frozen=True)
class SeveralSteps(Compiled):
    """Compiled steps of one model, several of which are taken in a call.

    Attributes:
        per_call: The number of steps in each call.
    """

    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet", "jax_step"})
    per_call: int = 16


@dataclass(frozen=True)
class Sentences(Compiled):
    """A step of a model that reads sequences of word indices."""

    only: ClassVar[frozenset[str] | None] = _COMPILERS - {"jax_step"}

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, always the same; each class belongs to one sequence or one position."""
        import torch

        generator = torch.Generator().manual_seed(1)
        return {
            "x": torch.randint(0, _WORDS, self.shape, generator=generator),
            "y": super().batch()["y"],
        }


@dataclass(frozen=True)
class Bert(Sentences):
    """A step of a model of Hugging Face's."""

    package: ClassVar[str | None] = "transformers"


@dataclass(frozen=True)
class ElementwiseChain(Workload):
    """A chain of elementwise ops, each a single call of torch's."""

    only: ClassVar[frozenset[str] | None] = _COMPILERS - {"bare_fused"}

    @property
    def keys(self) -> list[str]:
        """The keys along the chain."""
        return [f"k{index}" for index in range(self.size + 1)]

    def functions(self) -> list[Any]:
        """Return the function of each op, for tensors and for JAX's arrays."""

        def scale(value: Any) -> Any:
            return value * 1.01

        def shift(value: Any) -> Any:
            return value - 0.1

        def absolute(value: Any) -> Any:
            return abs(value)

        return [(scale, shift, absolute)[index % 3] for index in range(self.size)]

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, always the same."""
        import torch

        return {"k0": torch.linspace(-1, 1, 128).reshape(8, 16)}


@dataclass(frozen=True)
class AdversarialPair(Workload):
    """A step of a generator and a discriminator whose updates are deferred to its end."""

    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "bare_fused", "fastnet"})
    tolerance: ClassVar[tuple[float, float]] = _TOLERANCE
    takes_long: ClassVar[bool] = True  # type: ignore[assignment]
    steps_to_check: ClassVar[int] = 3  # type: ignore[assignment]

    def model(self) -> nn.Module:
        """Return both models, always with the same weights: "generator" and "discriminator"."""
        import torch
        from torch import nn

        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
        discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        return nn.ModuleDict({"generator": generator, "discriminator": discriminator})

    def optimizer(
        self, parameters: Iterable[nn.Parameter], fused: bool = False
    ) -> torch.optim.Optimizer:
        """Return the optimizer of one of them."""
        import torch

        return torch.optim.Adam(parameters, lr=1e-3, fused=fused or None)

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, always the same."""
        import torch

        generator = torch.Generator().manual_seed(1)
        return {
            "z": torch.randn((8, 8), generator=generator),
            "x": torch.randn((8, 16), generator=generator),
            "real": torch.ones(8, 1),
            "made": torch.zeros(8, 1),
        }


def mlp512() -> nn.Module:
    """Return an MLP of two hidden layers of 512: (128, 512) -> (128, 10)."""
    from torch import nn

    hidden = (nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(512, 10))


def lstm() -> nn.Module:
    """Return a classifier of sequences with an LSTM of 64: (8, 32) -> (8, 4)."""
    from torch import Tensor, nn

    class LSTMClassifier(nn.Module):
        """Classifies a sequence by the last output of an LSTM."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(_WORDS, 64)
            self.lstm = nn.LSTM(64, 64, batch_first=True)
            self.head = nn.Linear(64, 4)

        def forward(self, words: Tensor) -> Any:
            outputs, _ = self.lstm(self.embedding(words))
            return self.head(outputs[:, -1])

    return LSTMClassifier()


def gpt(width: int = 64, depth: int = 2, tokens: int = 32) -> nn.Module:
    """Return a GPT that predicts the class of each token.

    Args:
        width: The width of its layers.
        depth: The number of its layers.
        tokens: The length of the sequences.
    """
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    class Block(nn.Module):
        """Causal self-attention and an MLP, each behind a layer norm and around a residual."""

        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            # A bias of the keys has no gradient but rounding errors, which Adam would scale up.
            self.project = nn.Linear(width, 3 * width, bias=False)
            self.attended = nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Tensor) -> Tensor:
            batch, length, _ = x.shape
            heads = self.project(self.norms[0](x)).view(batch, length, 3, 4, width // 4)
            query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.attended(found.transpose(1, 2).reshape(batch, length, width))
            mixed: Tensor = x + self.mlp(self.norms[1](x))
            return mixed

    class GPT(nn.Module):
        """Embeds tokens and positions, runs the blocks, and returns logits of the last token."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(_WORDS, width), nn.Embedding(tokens, width)
            self.blocks = nn.Sequential(*[Block() for _ in range(depth)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _WORDS)

        def forward(self, words: Tensor) -> Any:
            x = self.tokens(words) + self.positions(
                torch.arange(words.shape[1], device=words.device)
            )
            return self.head(self.norm(self.blocks(x))).flatten(0, 1)

    return GPT()


def gpt256() -> nn.Module:
    """Return a GPT of 4 layers, 256 wide, for sequences of 128 tokens."""
    return gpt(width=256, depth=4, tokens=128)


def resnet18() -> nn.Module:
    """Return a ResNet-18: (8, 3, 64, 64) -> (8, 10)."""
    from bench.architectures import resnet

    return resnet()


@dataclass(frozen=True)
class Tokens(Sentences):
    """A step of a language model: each position has a class."""

    only: ClassVar[frozenset[str] | None] = _COMPILERS

    def batch(self) -> dict[str, torch.Tensor]:
        """Return tokens and, for each of them, the one that follows."""
        words = super().batch()["x"]
        return {"x": words, "y": words.roll(-1, 1).flatten()}


def bert() -> nn.Module:
    """Return a classifier of sentences as `transformers` makes it: 2 layers of 32."""
    import transformers
    from torch import nn

    config = transformers.BertConfig(
        vocab_size=_WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=4,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )

    class Logits(nn.Module):
        """The logits of the model."""

        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertForSequenceClassification(config)

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model(input_ids=ids).logits

    return Logits()


def _of(
    kind: type[Compiled], name: str, title: str, *model: Any, **limits: float | None
) -> list[Compiled]:
    """Return the steps of one model: "sgd", "adam" and "infer", each with its goal."""
    names = {"sgd": "train step, SGD", "adam": "train step, Adam", "infer": "infer step"}
    made = []
    for step, limit in limits.items():
        settings = {"adam": step == "adam", "goal": limit and Goal(limit)}
        about = (f"compiled_{name}_{step}", f"{title} {names[step]}", step != "infer")
        made.append(kind(*about, *model, **settings))
    return made


_MLP = (torch_models.mlp, (8, 16), 4)
_MODULES = (torch_models.modules120, (8, 16), 16)
_LENET = (torch_models.lenet, torch_models.IMAGES, 10)

WORKLOADS = (
    *_of(Compiled, "mlp", "MLP", *_MLP, sgd=0.35, adam=0.25, infer=0.80),
    *_of(Compiled, "modules120", "120 modules", *_MODULES, sgd=0.25, adam=0.20, infer=0.40),
    Compiled("compiled_lenet_train", "LeNet train step", True, *_LENET, goal=Goal(1.00)),
    Compiled("compiled_lenet_infer", "LeNet infer step", False, *_LENET, goal=Goal(1.00)),
    AdversarialPair("compiled_pair", "GAN pair, deferred updates, Adam", goal=Goal(0.40)),
    ElementwiseChain("compiled_chain_50", "50 elementwise ops", size=50, goal=Goal(0.20)),
    *_of(Bert, "bert", "BERT of 2 layers,", bert, (8, 16), 4, adam=None),
    *_of(Compiled, "mlp512", "MLP of 512, batch 128,", mlp512, (128, 512), 10, sgd=None, adam=None),
    *_of(Sentences, "lstm", "LSTM classifier,", lstm, (8, 32), 4, adam=None),
    *_of(Tokens, "gpt", "GPT of 2 layers, 64 wide,", gpt, (8, 32), _WORDS, adam=None),
    *_of(Tokens, "gpt256", "GPT of 4 layers, 256 wide,", gpt256, (16, 128), _WORDS, adam=None),
    Compiled(
        "compiled_resnet18",
        "ResNet-18, 64 by 64, batch 8, SGD",
        True,
        resnet18,
        (8, 3, 64, 64),
        10,
        is_deep=True,
    ),
    SeveralSteps("compiled_mlp_16", "MLP train step, SGD, 16 a call", True, *_MLP),
)
