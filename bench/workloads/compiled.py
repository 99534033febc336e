"""Steps that are compiled as a whole, beside the loop by hand and other ways to compile it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from bench.workloads import lenet, many_modules, mlp
from bench.workloads.supervised import LEARNING_RATE, Supervised
from bench.workloads.torch_workload import TorchWorkload
from bench.workloads.workload import Goal

if TYPE_CHECKING:
    import torch
    from torch import nn

_WAYS = frozenset(
    {"bare", "fastnet", "compiled_model", "compiled_update", "compiled_loop", "jax_step"}
)


@dataclass(frozen=True)
class Compiled(Supervised):
    """A step of one model, compiled; it trains with SGD or with Adam.

    Attributes:
        adam: Whether the optimizer is Adam.
    """

    adam: bool = False

    only: ClassVar[frozenset[str] | None] = _WAYS

    @property
    def takes_long(self) -> bool:
        """Whether the compilers take long for it: all but the small ones do."""
        return self.layers is not mlp.layers or self.adam

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of `model`."""
        return self.optimizer_of(model.parameters())

    def optimizer_of(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of some parameters, as `build` asks for it."""
        import torch

        kind = torch.optim.Adam if self.adam else torch.optim.SGD
        return kind(parameters, lr=LEARNING_RATE)

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare keys, and values as far as compilers keep the order of sums."""
        import torch

        assert result.keys() == expected.keys(), f"{set(result)} is not {set(expected)}"
        for key, value in expected.items():
            torch.testing.assert_close(result[key], value, rtol=1e-4, atol=1e-5)

    def check_weights(self, expected: nn.Module, result: nn.Module) -> None:
        """Compare the weights of two models likewise."""
        import torch

        for one, other in zip(expected.parameters(), result.parameters(), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Divided(Compiled):
    """A train step with a metric in Python's numbers, `correct`, which divides its ops."""

    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet"})

    @property
    def wanted(self) -> set[str]:
        """The keys that a step adds to its batch."""
        return {"pred", "loss", "correct"}


@dataclass(frozen=True)
class Sentences(Compiled):
    """A step of a model of Hugging Face's that reads sentences."""

    words: ClassVar[int] = 100
    # nobody has it without the package that the model is of
    only: ClassVar[frozenset[str] | None] = (
        _WAYS - {"jax_step"} if find_spec("transformers") else frozenset()
    )

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, the same every time."""
        import torch

        return {**super().batch(), "x": torch.arange(8 * 16).reshape(8, 16) % self.words}


@dataclass(frozen=True)
class Chain(TorchWorkload):
    """Ops on elements, one behind the other, each a single call of torch's.

    Attributes:
        length: How many ops there are.
    """

    length: int = 50

    only: ClassVar[frozenset[str] | None] = _WAYS

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal beside the hand-written loop."""
        return {"bare": Goal(0.20)}

    @property
    def keys(self) -> list[str]:
        """The keys along the chain."""
        return [f"k{place}" for place in range(self.length + 1)]

    def functions(self) -> list[Any]:
        """Return what each op does: functions of one tensor, or of JAX's arrays."""

        def scale(value: Any) -> Any:
            return value * 1.01

        def shift(value: Any) -> Any:
            return value - 0.1

        def bend(value: Any) -> Any:
            return abs(value)

        return [(scale, shift, bend)[place % 3] for place in range(self.length)]

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, the same every time."""
        import torch

        return {"k0": torch.linspace(-1, 1, 128).reshape(8, 16)}


@dataclass(frozen=True)
class AdversarialPair(TorchWorkload):
    """A step of a generator and a discriminator, whose gradients are of the same weights."""

    only: ClassVar[frozenset[str] | None] = frozenset({"bare", "fastnet"})

    @property
    def takes_long(self) -> bool:
        """Whether the compilers take long for it."""
        return True

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal beside the hand-written loop."""
        return {"bare": Goal(0.40)}

    @property
    def steps_to_check(self) -> int:
        """Three, to see that weights move alike."""
        return 3

    def model(self) -> nn.Module:
        """Return both models, with the same weights every time: "generator", "discriminator"."""
        import torch
        from torch import nn

        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
        discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        return nn.ModuleDict({"generator": generator, "discriminator": discriminator})

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of one of them."""
        import torch

        return torch.optim.Adam(parameters, lr=1e-3)

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch, the same every time."""
        import torch

        generator = torch.Generator().manual_seed(1)
        return {
            "z": torch.randn((8, 8), generator=generator),
            "x": torch.randn((8, 16), generator=generator),
            "real": torch.ones(8, 1),
            "made": torch.zeros(8, 1),
        }

    def check_weights(self, expected: nn.Module, result: nn.Module) -> None:
        """Compare the weights of two pairs, as far as compilers keep the order of sums."""
        import torch

        for one, other in zip(expected.parameters(), result.parameters(), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def _mlp(name: str, title: str, training: bool, limit: float, adam: bool = False) -> Compiled:
    return Compiled(name, title, training, mlp.layers, (8, 16), 4, Goal(limit), adam=adam)


def _modules(name: str, title: str, training: bool, limit: float, adam: bool = False) -> Compiled:
    return Compiled(name, title, training, many_modules.layers, (8, 16), 16, Goal(limit), adam=adam)


def _lenet(name: str, title: str, training: bool) -> Compiled:
    return Compiled(name, title, training, lenet.layers, (32, 1, 28, 28), 10, Goal(1.00))


def _bert() -> nn.Module:
    """Return a classifier of sentences, as `transformers` makes it: 2 layers of 32."""
    import transformers
    from torch import nn

    config = transformers.BertConfig(
        vocab_size=Sentences.words, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, num_labels=4, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip

    class Logits(nn.Module):
        """What the model says of each class."""

        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertForSequenceClassification(config)

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model(input_ids=ids).logits

    return Logits()


WORKLOADS = (
    _mlp("compiled_mlp_sgd", "MLP train step, SGD", True, 0.35),
    _mlp("compiled_mlp_adam", "MLP train step, Adam", True, 0.25, adam=True),
    _mlp("compiled_mlp_infer", "MLP infer step", False, 0.80),
    _modules("compiled_modules120_sgd", "120 modules train step, SGD", True, 0.25),
    _modules("compiled_modules120_adam", "120 modules train step, Adam", True, 0.20, adam=True),
    _modules("compiled_modules120_infer", "120 modules infer step", False, 0.40),
    _lenet("compiled_lenet_train", "LeNet train step", True),
    _lenet("compiled_lenet_infer", "LeNet infer step", False),
    AdversarialPair("compiled_pair", "GAN pair, deferred updates, Adam"),
    Chain("compiled_chain_50", "50 elementwise ops"),
    Divided("compiled_divided", "MLP train step and a metric that looks at values, Adam", True,
            mlp.layers, (8, 16), 4, adam=True),
    Sentences("compiled_bert_adam", "BERT of 2 layers, train step, Adam", True,
              _bert, (8, 16), 4, adam=True),
)  # fmt: skip
