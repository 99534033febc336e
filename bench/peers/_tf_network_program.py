"""fastnet's and FastEstimator's programs in TensorFlow: only the name of the package differs."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any

from bench.program import Program
from bench.workloads.growth import TFGrowingChain
from bench.workloads.tf_first_step import TFFirstStep
from bench.workloads.tf_op_cost import TFOpCost
from bench.workloads.tf_open_epoch import TFOpenEpoch
from bench.workloads.tf_supervised import TFCompiled, TFDivided, TFSupervised
from bench.workloads.tf_traces import TFTraces, TraceCensus
from bench.workloads.workload import Workload

_WANTED = {"pred", "loss"}


class TFNetworkPrograms:
    """Makes the programs in TensorFlow of one package that has FastEstimator's API.

    Args:
        package: `"fastnet"` or `"fastestimator"`.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def make(self, workload: Workload) -> Program | None:
        """Return the package's program for `workload`."""
        match workload:
            case TFSupervised():
                return self._supervised(workload)
            case TFFirstStep():
                return self._first_step(workload)
            case TFOpenEpoch():
                return self._open_epoch(workload)
            case TFTraces():
                return self._traces(workload)
            case TFOpCost():
                return self._op_cost(workload)
            case TFGrowingChain():
                return self._growing_chain(workload)
        return None

    def _module(self, name: str) -> Any:
        return import_module(f"{self._package}.{name}")

    def _network(self, model: Any, sorts: bool = False, **options: Any) -> Any:
        """Return a network that trains a model which `build` has made."""
        import tensorflow as tf

        sort = self._module("op.tensorop").LambdaOp(tf.sort, "x", "sorted")
        modules = self._module("op.tensorop.model")
        losses = self._module("op.tensorop.loss")
        return self._module("network").TFNetwork(
            ops=[
                *([sort] if sorts else []),
                modules.ModelOp(model=model, inputs="sorted" if sorts else "x", outputs="pred"),
                losses.CrossEntropy(inputs=("pred", "y"), outputs="loss", from_logits=True),
                modules.UpdateOp(model=model, loss_name="loss"),
            ],
            **options,
        )

    def _supervised(self, workload: TFSupervised) -> Program:
        """Run steps in a network that is entered now, once."""
        build = self._module("network").build
        model = build(model_fn=workload.model, optimizer_fn=workload.optimizer)
        options = {"compile": True} if isinstance(workload, TFCompiled) else {}
        network = self._network(model, isinstance(workload, TFDivided), **options)
        context = network(
            mode=workload.mode, epoch=1, ds_id="", desired_output_keys=workload.wanted
        )
        context.__enter__()
        return Program(
            network.run_step,
            workload.batch(),
            model=model,
            close=lambda: context.__exit__(None, None, None),
        )

    def _growing_chain(self, workload: TFGrowingChain) -> Program:
        base = self._module("op.tensorop").TensorOp

        class Increment(base):  # type: ignore[misc, valid-type]
            """An op that adds one."""

            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                return data + 1

        keys = workload.keys
        ops = [Increment(inputs=key, outputs=after) for key, after in pairwise(keys)]
        network = self._module("network").TFNetwork(ops=ops)
        context = network(mode="infer", epoch=1, ds_id="", desired_output_keys={keys[-1]})
        context.__enter__()
        return Program(
            network.run_step, workload.batch(), close=lambda: context.__exit__(None, None, None)
        )

    def _open_epoch(self, workload: TFOpenEpoch) -> Program:
        """Open a network for the next epoch, run a step, and leave it."""
        step = workload.step
        model = self._module("network").build(model_fn=step.model, optimizer_fn=step.optimizer)
        network = self._network(model)
        plain = self._supervised(step)
        epoch = 0

        def open_and_step(batch: dict[str, Any]) -> Any:
            nonlocal epoch
            epoch += 1
            with network(mode="train", epoch=epoch, ds_id="", desired_output_keys=step.wanted):
                return network.run_step(batch)

        return Program(open_and_step, step.batch(), model=model, plain=plain, close=plain.close)

    def _first_step(self, workload: TFFirstStep) -> Program:
        """Open a new network, run a step, and leave it."""
        step = workload.step
        batch = step.batch()
        build = self._module("network").build

        def make() -> Any:
            return self._network(build(model_fn=step.model, optimizer_fn=step.optimizer))

        def open_and_step(network: Any) -> Any:
            with network(mode=step.mode, epoch=1, ds_id="", desired_output_keys=step.wanted):
                return network.run_step(batch)

        return Program(open_and_step, fresh=make)

    def _traces(self, workload: TFTraces) -> Program:
        census = TraceCensus()
        batches = workload.batches()

        def count(_: None) -> int:
            model = self._module("network").build(
                model_fn=lambda: workload.model(census), optimizer_fn=workload.step.optimizer
            )
            network = self._network(model)

            def run_epoch(mode: str, epoch: int) -> None:
                with network(mode=mode, epoch=epoch, ds_id="", desired_output_keys=_WANTED):
                    for batch in batches:
                        network.run_step(batch)

            return workload.count(census, run_epoch)

        return Program(count)

    def _op_cost(self, workload: TFOpCost) -> Program | None:
        """Run an op in a network of its own; the plain step is that of an op that does nothing."""
        case = workload.case
        if (self._package, workload.framework) in case.not_by:
            return None
        package = self._module("network")
        made: list[Any] = []

        def build() -> Any:
            made.append(package.build(model_fn=workload.model, optimizer_fn=workload.optimizer))
            return made[-1]

        def enter(ops: list[Any], wanted: set[str]) -> tuple[Any, Any]:
            network = package.TFNetwork(ops=ops)
            context = network(
                mode=case.mode,
                epoch=1,
                ds_id="",
                desired_output_keys=wanted,
                eager=workload.eager,
            )
            context.__enter__()
            return network.run_step, context

        step, context = enter(case.ops(self._module, build), set(case.outputs))
        contexts = [context]
        batch = workload.batch()
        plain: Program | None = None
        if workload.eager:
            others, left = [self._module("op.tensorop").TensorOp()], set[str]()
            if case.beside is not None:
                others, left = case.beside.ops(self._module, build), set(case.beside.outputs)
            plain_step, context = enter(others, left)
            contexts.append(context)
            plain = Program(plain_step, batch)

        def once(batch: dict[str, Any]) -> Any:
            workload.seed()
            return step(batch)

        def close() -> None:
            for context in contexts:
                context.__exit__(None, None, None)

        return Program(
            step,
            batch,
            once=once,
            model=made[-1] if case.updates else None,
            plain=plain,
            close=close,
        )
