"""The peers: one module each, all with the interface of `Peer`.

A peer's library is imported only when one of its programs is made, so that a peer that is not
installed is merely absent.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from bench.program import Program
    from bench.workloads.workload import Framework, Workload


class Peer(Protocol):
    """What each module of this package has.

    Attributes:
        NAME: How the report calls the peer.
    """

    NAME: str

    def available(self) -> bool:
        """Return whether the peer is installed in this interpreter."""

    def version(self) -> str | None:
        """Return the version that is installed, or None where a version means nothing."""

    def make(self, workload: Workload) -> Program | None:
        """Return a program for `workload`, or None if the peer has no such thing."""


# The modules of this package that work in each framework, in the order in which the report shows
# them. A process loads those of one framework only.
BY_FRAMEWORK: dict[Framework, tuple[str, ...]] = {
    "torch": (
        "bare",
        "bare_strict",
        "fastnet",
        "fastestimator",
        "tensordict",
        "lightning",
        "fabric",
        "ignite",
        "accelerate",
        "optree",
        "pytree",
        "compiled_model",
        "compiled_update",
        "compiled_loop",
        "jax_step",
    ),
    "tf": (
        "tf_concrete",
        "tf_concrete_any",
        "tf_eager",
        "fastnet",
        "fastestimator",
        "tf_function",
        "keras_fit",
        "keras_on_batch",
    ),
}

# What was written by hand for others to be compared with: these always take part.
BASELINES = frozenset({"bare", "bare_strict", "tf_concrete", "tf_concrete_any", "tf_eager"})


def load(name: str) -> Peer:
    """Return the peer that the module `name` is."""
    return cast("Peer", import_module(f"bench.peers.{name}"))


@cache
def title(name: str) -> str:
    """Return `NAME` of the module `name`.

    The module is read, not imported, so that a report is shown where no framework is installed.
    """
    source = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAME":
            return str(ast.literal_eval(node.value))
    raise ValueError(f"The peer {name} has no NAME.")


def installed(package: str) -> bool:
    """Return whether `package` could be imported."""
    return find_spec(package) is not None


def version_of(distribution: str) -> str | None:
    """Return the installed version of `distribution`."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
