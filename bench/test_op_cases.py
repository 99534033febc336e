"""Every tensor op has a case among those whose cost is measured."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench import machine
from bench.workloads.op_cost import WORKLOADS

if not machine.has("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

import fastnet
from fastnet.op import tensorop
from fastnet.op.tensorop.model.following import FollowsUpdates


def _public_ops() -> set[type[tensorop.TensorOp]]:
    """Find the ops that the package offers, and those of the packages in it."""
    packages = [tensorop]
    for found in pkgutil.iter_modules(tensorop.__path__, f"{tensorop.__name__}."):
        if found.ispkg:
            packages.append(import_module(found.name))
    offered = [getattr(package, name) for package in packages for name in package.__all__]
    ops = {one for one in offered if inspect.isclass(one) and issubclass(one, tensorop.TensorOp)}
    # what follows updates is called by them, and not by a step
    return {one for one in ops if not issubclass(one, FollowsUpdates)}


def _with_inner(ops: Iterable[Any]) -> Iterator[Any]:
    """Return ops, and the ops that they run."""
    for op in ops:
        yield op
        yield from _with_inner(getattr(op, "ops", ()))
        yield from _with_inner([op.loss] if isinstance(op, tensorop.loss.SuperLoss) else ())


def test_every_op_has_a_case() -> None:
    used: set[type] = set()
    for workload in WORKLOADS:

        def build(model_fn: Any = workload.model) -> Any:
            return fastnet.build(model_fn=model_fn, optimizer_fn="sgd")

        ops = workload.case.ops(lambda name: import_module(f"fastnet.{name}"), build)
        for op in _with_inner(ops):
            # a base class, or another spelling, is measured with what is derived from it
            used.update(type(op).__mro__)
    offered = _public_ops()
    assert {"Argmax", "UpdateOp", "SuperLoss", "MixUpBatch"} <= {one.__name__ for one in offered}
    assert {one.__name__ for one in offered - used} == set()


def test_every_case_has_its_calls() -> None:
    from bench.peers._torch_calls import calls_of

    for workload in WORKLOADS:
        calls_of(workload.case.name, workload.model())


def test_names_of_cases_differ() -> None:
    names = [workload.name for workload in WORKLOADS]
    assert len(set(names)) == len(names)


def test_this_looks_where_ops_lie() -> None:
    folders = {path.name for path in Path(tensorop.__path__[0]).iterdir() if path.is_dir()}
    found = {one.__module__.split(".")[3] for one in _public_ops()}
    assert folders - {"__pycache__"} <= found
