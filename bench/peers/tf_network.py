"""fastnet's and FastEstimator's programs in TensorFlow: only the name of the package differs."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any

from bench.program import Program, entered
from bench.workloads.chains import TFGrowingChain
from bench.workloads.tf_models import TFFirstStep, TFOpenEpoch, TFSupervised, sgd
from bench.workloads.workload import Workload


def make(workload: Workload, package: str) -> Program | None:
    """Return the program of a package that has FastEstimator's API."""
    match workload:
        case TFSupervised():
            return _supervised(workload, package)
        case TFFirstStep():
            return _first_step(workload, package)
        case TFOpenEpoch():
            return _open_epoch(workload, package)
        case TFGrowingChain():
            return _growing_chain(workload, package)
    return None


def _network(package: str, model_fn: Any, **options: Any) -> tuple[Any, Any]:
    """Return a network that trains a model, and the model."""
    modules: Any = import_module(f"{package}.op.tensorop.model")
    losses: Any = import_module(f"{package}.op.tensorop.loss")
    network: Any = import_module(f"{package}.network")
    model = network.build(model_fn=model_fn, optimizer_fn=sgd)
    made = [
        modules.ModelOp(model=model, inputs="x", outputs="pred"),
        losses.CrossEntropy(inputs=("pred", "y"), outputs="loss", from_logits=True),
        modules.UpdateOp(model=model, loss_name="loss"),
    ]
    return network.TFNetwork(ops=made, **options), model


def _supervised(workload: TFSupervised, package: str) -> Program:
    options = {"compile": True} if workload.jit_compile else {}
    network, model = _network(package, workload.model, **options)
    return entered(network, workload.mode, workload.wanted, workload.batch(), model)


def _growing_chain(workload: TFGrowingChain, package: str) -> Program:
    class Increment(import_module(f"{package}.op.tensorop").TensorOp):  # type: ignore[misc, name-defined]
        """An op that adds one."""

        def forward(self, data: Any, state: dict[str, Any]) -> Any:
            return data + 1

    keys = workload.keys
    ops = [Increment(inputs=key, outputs=after) for key, after in pairwise(keys)]
    network = import_module(f"{package}.network").TFNetwork(ops=ops)
    return entered(network, "infer", {keys[-1]}, workload.batch())


def _open_epoch(workload: TFOpenEpoch, package: str) -> Program:
    """Enter a network for the next epoch, run a step, and leave it."""
    step = workload.step
    network, model = _network(package, step.model)
    plain = _supervised(step, package)
    epoch = 0

    def open_and_step(batch: dict[str, Any]) -> Any:
        nonlocal epoch
        epoch += 1
        with network(mode="train", epoch=epoch, ds_id="", desired_output_keys=step.wanted):
            return network.run_step(batch)

    return Program(open_and_step, step.batch(), model=model, plain=plain, close=plain.close)


def _first_step(workload: TFFirstStep, package: str) -> Program:
    """Enter a new network, run a step, and leave it."""
    step = workload.step
    batch = step.batch()

    def open_and_step(network: Any) -> Any:
        with network(mode=step.mode, epoch=1, ds_id="", desired_output_keys=step.wanted):
            return network.run_step(batch)

    return Program(open_and_step, fresh=lambda: _network(package, step.model)[0])
