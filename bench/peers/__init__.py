"""The peers, with one interface: `make(workload, **options)` of the peer's module.

A module imports its library only when it is loaded, so that reports are shown where no framework
is installed, and a peer that is not installed is merely absent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.program import Program
    from bench.workloads.workload import Framework, Workload

# Okabe and Ito's colors, which are distinguishable with every kind of color vision, and grays.
_BLACK, _GRAY, _LIGHT = "#000000", "#8a8f98", "#b5b9bf"
_BLUE, _RED, ORANGE = "#0072b2", "#d55e00", "#e69f00"
_PINK, SKY, _GREEN, _YELLOW = "#cc79a7", "#56b4e9", "#009e73", "#a0a000"


@dataclass(frozen=True)
class Peer:
    """A library, or a form of the hand-written loop.

    Attributes:
        title: Its name in tables and plots.
        module: The module of this package; "{framework}" stands for "torch" or "tf".
        package: The package that has to be installed.
        distribution: The distribution whose version a report states, if any.
        color: Its color in every plot.
        options: The options of the module's `make`.
        compiles: Whether it needs a C++ compiler.
    """

    title: str
    module: str
    package: str
    distribution: str | None
    color: str
    options: Mapping[str, Any] = field(default_factory=dict)
    compiles: bool = False

    @cached_property
    def available(self) -> bool:
        """Whether the peer is installed in this interpreter."""
        compiler = not self.compiles or shutil.which(os.environ.get("CXX", "g++"))
        return bool(compiler) and installed(self.package)

    @cached_property
    def version(self) -> str | None:
        """The installed version of `distribution`."""
        return self.distribution and version_of(self.distribution)


def _compiled(title: str, color: str, **options: bool) -> Peer:
    return Peer(f"torch.compile, {title}", "torch_compile", "torch", None, color, options, True)


def _by_hand(title: str, color: str, **options: bool) -> Peer:
    return Peer(f"hand-written loop{title}", "bare", "torch", None, color, options)


def _network(title: str, color: str) -> Peer:
    package = title.lower()
    distribution = "fastnet-runtime" if package == "fastnet" else package
    return Peer(title, "{framework}_network", package, distribution, color, {"package": package})


def _tf(title: str, color: str, **options: bool) -> Peer:
    return Peer(title, "tf_by_hand", "tensorflow", None, color, options)


def _keras(title: str, color: str, **options: bool) -> Peer:
    return Peer(title, "keras_model", "tensorflow", "keras", color, options)


# In the order of the tables. A process loads the peers of one framework only.
PEERS: dict[str, Peer] = {
    "bare": _by_hand("", _BLACK),
    "bare_fused": _by_hand(", fused=True", _GRAY, fused=True),
    "bare_strict": _by_hand(", strict", _LIGHT, strict=True),
    "tf_concrete": _tf("concrete function", _BLACK),
    "tf_concrete_any": _tf("concrete function, any size", _LIGHT, any_size=True),
    "fastnet": _network("fastnet", _BLUE),
    "fastestimator": _network("FastEstimator", _RED),
    "tensordict": Peer("tensordict", "tensordict", "tensordict", "tensordict", ORANGE),
    "lightning": Peer(
        "Lightning", "lightning", "pytorch_lightning", "pytorch-lightning", "#c77cff"
    ),
    "fabric": Peer("Fabric", "fabric", "lightning_fabric", "lightning-fabric", _PINK),
    "ignite": Peer("Ignite", "ignite", "ignite", "pytorch-ignite", SKY),
    "accelerate": Peer("Accelerate", "accelerate", "accelerate", "accelerate", _GREEN),
    "optree": Peer("optree", "tree_maps", "optree", "optree", _YELLOW, {"package": "optree"}),
    "pytree": Peer(
        "torch pytree", "tree_maps", "torch", None, "#b8860b", {"package": "torch.utils._pytree"}
    ),
    "compiled_model": _compiled("model", ORANGE, of_model=True),
    "compiled_update": _compiled("model and optimizer", _PINK, of_model=True, of_update=True),
    "compiled_loop": _compiled("step", SKY, of_step=True),
    "jax_step": Peer("JAX", "jax_step", "optax", "jax", _YELLOW),
    "tf_function": _tf("tf.function", ORANGE, concrete=False),
    "tf_function_jit": _tf(
        "tf.function, jit_compile=True", _PINK, concrete=False, jit_compile=True
    ),
    "keras_fit": _keras("Keras fit", _GREEN),
    "keras_fit_at_once": _keras("Keras fit, steps_per_execution", "#1b5e20", at_once=True),
    "keras_on_batch": _keras("Keras on_batch", SKY, on_batch=True),
}

_TF_ONLY = frozenset(
    {"tf_concrete", "tf_concrete_any", "tf_function", "tf_function_jit"}
    | {"keras_fit", "keras_fit_at_once", "keras_on_batch"}
)
_BOTH = frozenset({"fastnet", "fastestimator"})
BY_FRAMEWORK: dict[Framework, tuple[str, ...]] = {
    "torch": tuple(name for name in PEERS if name not in _TF_ONLY),
    "tf": tuple(name for name in PEERS if name in _TF_ONLY | _BOTH),
}

# The hand-written loops, which always take part.
BASELINES = frozenset({"bare", "bare_fused", "bare_strict", "tf_concrete", "tf_concrete_any"})


def make(name: str, workload: Workload) -> Program | None:
    """Return a peer's program for a workload, or None if the peer has no such feature."""
    peer = PEERS[name]
    module = import_module(f"bench.peers.{peer.module.format(framework=workload.framework)}")
    program: Program | None = module.make(workload, **peer.options)
    return program


def title(name: str) -> str:
    """Return the name of a peer in tables and plots."""
    return PEERS[name].title


def installed(package: str) -> bool:
    """Return whether `package` can be imported."""
    return find_spec(package) is not None


def version_of(distribution: str) -> str | None:
    """Return the installed version of `distribution`."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
