"""fastnet's and FastEstimator's programs in PyTorch: only the name of the package differs."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from bench.program import Program, entered
from bench.workloads.chains import Chain, IdentityChain, LiveTensors, Measuring, OpenEpoch
from bench.workloads.compiled import AdversarialPair, Compiled, ElementwiseChain, SeveralSteps
from bench.workloads.nests import AXIS, ManyKeys, Nest, Slicing
from bench.workloads.ops import LEARNING_RATE, OpCost
from bench.workloads.torch_models import Supervised
from bench.workloads.workload import Workload


def make(workload: Workload, package: str) -> Program | None:
    """Return the program of a package that has FastEstimator's API."""
    return _Programs(package).make(workload)


class _Programs:
    def __init__(self, package: str) -> None:
        self._package = package

    def make(self, workload: Workload) -> Program | None:
        match workload:
            case Supervised():
                return self._supervised(workload)
            case AdversarialPair():
                return self._adversarial_pair(workload)
            case ElementwiseChain():
                return self._elementwise_chain(workload)
            case OpenEpoch():
                return self._open(workload)
            case Measuring():
                return self._measuring(workload)
            case LiveTensors():
                return self._live_tensors(workload)
            case IdentityChain():
                return self._identity_chain(workload)
            case Nest():
                return Program(self._module("util").detach_tensors, workload.nest())
            case Slicing():
                slicer = self._module("slicer").AxisSlicer(axis=AXIS, slice="x", unslice="y")
                ops = self._identity_ops(["x", "y"])
                return self._infer(ops, {"y"}, workload.batch(), slicers=slicer)
            case ManyKeys():
                return self._many_keys(workload)
            case OpCost():
                return self._op_cost(workload)
        return None

    def _module(self, name: str) -> Any:
        return import_module(f"{self._package}.{name}")

    def _infer(self, ops: Any, wanted: set[str], batch: Any, **options: Any) -> Program:
        """Return a program that runs infer steps of ops that need no build."""
        network = self._module("network").TorchNetwork(ops, **options)
        return entered(network, "infer", wanted, batch)

    def _op(self, forward: Any) -> Any:
        """Return an op class of a user, with a function as its `forward`."""

        class UserOp(self._module("op.tensorop").TensorOp):  # type: ignore[misc, name-defined]
            """An op of a user."""

        UserOp.forward = lambda op, data, state: forward(data)
        return UserOp

    def _identity_ops(self, keys: list[str]) -> list[Any]:
        """Return an identity op for each step along `keys`."""

        class Identity(self._module("op.tensorop").TensorOp):  # type: ignore[misc, name-defined]
            """An op that returns its input."""

            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                return data

        return [Identity(inputs=key, outputs=after) for key, after in pairwise(keys)]

    def _identity_chain(self, workload: Chain) -> Program:
        keys = workload.keys
        return self._infer(self._identity_ops(keys), {keys[-1]}, workload.batch())

    def _supervised(self, workload: Supervised) -> Program:
        modules = self._module("op.tensorop.model")
        losses = self._module("op.tensorop.loss")
        package = self._module("network")
        model = package.build(model_fn=workload.model, optimizer_fn=workload.optimizer)

        network = package.Network(
            [
                modules.ModelOp(model=model, inputs="x", outputs="pred"),
                losses.CrossEntropy(inputs=("pred", "y"), outputs="loss", from_logits=True),
                modules.UpdateOp(model=model, loss_name="loss"),
            ],
            **({"compile": True} if isinstance(workload, Compiled) else {}),
        )
        program = entered(network, workload.mode, workload.wanted, workload.batch(), model)
        if isinstance(workload, SeveralSteps):
            return replace(
                program,
                step=network.run_steps,
                argument=[program.argument] * workload.per_call,
                steps_per_call=workload.per_call,
                once=lambda batches: network.run_steps(batches[:1])[0],
            )
        return program

    def _adversarial_pair(self, workload: AdversarialPair) -> Program:
        modules = self._module("op.tensorop.model")
        error = self._module("op.tensorop.loss").MeanSquaredError
        package = self._module("network")
        pair = workload.model()
        generator, discriminator = package.build(
            lambda: list(pair.children()), optimizer_fn=[workload.optimizer] * 2
        )
        add, detach = self._op(lambda data: data[0] + data[1]), self._op(torch.Tensor.detach)
        network = package.Network(
            [
                modules.ModelOp(generator, inputs="z", outputs="fake"),
                modules.ModelOp(discriminator, inputs="fake", outputs="of_fake"),
                error(inputs=("of_fake", "real"), outputs="g_loss"),
                modules.UpdateOp(generator, loss_name="g_loss", defer=True),
                detach(inputs="fake", outputs="still"),
                modules.ModelOp(discriminator, inputs="x", outputs="of_x"),
                modules.ModelOp(discriminator, inputs="still", outputs="of_still"),
                error(inputs=("of_x", "real"), outputs="x_loss"),
                error(inputs=("of_still", "made"), outputs="still_loss"),
                add(inputs=("x_loss", "still_loss"), outputs="d_loss"),
                modules.UpdateOp(discriminator, loss_name="d_loss", defer=True),
            ],
            compile=True,
        )
        return entered(network, "train", {"g_loss", "d_loss"}, workload.batch(), pair)

    def _elementwise_chain(self, workload: ElementwiseChain) -> Program:
        op = self._module("op.tensorop").LambdaOp
        functions = zip(workload.functions(), pairwise(workload.keys), strict=True)
        ops = [op(fn, inputs=key, outputs=after) for fn, (key, after) in functions]
        return self._infer(ops, {workload.keys[-1]}, workload.batch(), compile=True)

    def _open(self, workload: OpenEpoch) -> Program:
        """Enter and leave a network: a new one each time, or one at the same or the next epoch."""
        keys, batch = workload.keys, workload.batch()
        wanted = {keys[-1]}
        epoch = 1

        def new() -> Any:
            return self._module("network").TorchNetwork(self._identity_ops(keys))

        def enter(network: Any) -> None:
            with network(mode="infer", epoch=epoch, ds_id="", desired_output_keys=wanted):
                pass

        def enter_next(network: Any) -> None:
            nonlocal epoch
            epoch += 1
            enter(network)

        step = enter_next if workload.which == "next" else enter

        def once(network: Any) -> Any:
            if workload.which != "first":
                step(network)
            with network(mode="infer", epoch=epoch, ds_id="", desired_output_keys=wanted):
                return network.run_step(batch)

        if workload.which == "first":
            return Program(enter, fresh=new, once=once)
        return Program(step, new(), once=once)

    def _many_keys(self, workload: ManyKeys) -> Program:
        (op,) = self._identity_ops(["in", "out"])
        op = type(op)(inputs=workload.inputs, outputs=workload.outputs)
        # With one key each, an op reads and writes bare values unless this is set.
        op.in_list = op.out_list = True
        return self._infer(op, set(workload.outputs), workload.batch())

    def _live_tensors(self, workload: LiveTensors) -> Program:
        from bench.workloads.chains import Census

        census = Census()
        grow = self._op(lambda data: census.grow(data))
        keys = workload.keys
        ops = [grow(inputs=key, outputs=after) for key, after in pairwise(keys)]
        program = self._infer(ops, {keys[-1]}, workload.batch())

        def step(batch: dict[str, Any]) -> int:
            program.step(batch)
            return census.most

        return Program(step, workload.batch(), close=program.close)

    def _measuring(self, workload: Measuring) -> Program:
        """Run a chain's step in a network that is profiled, and plain steps in a second network."""
        keys = workload.keys
        network = self._module("network").TorchNetwork(self._identity_ops(keys))
        program = entered(network, "infer", {keys[-1]}, workload.batch())
        profiling = import_module(self._package).profile(network)
        profiling.__enter__()
        plain = self._identity_chain(workload)

        def close() -> None:
            profiling.__exit__(None, None, None)
            plain.close()
            program.close()

        return Program(program.step, workload.batch(), plain=plain, close=close)

    def _op_cost(self, workload: OpCost) -> Program | None:
        """Run an op in a network of its own; the plain step is that of an op that does nothing."""
        case = workload.case
        if case.not_fe and self._package == "fastestimator":
            return None
        package = self._module("network")
        models: list[Any] = []

        def sgd(parameters: Any) -> Any:
            return torch.optim.SGD(parameters, lr=LEARNING_RATE)

        def build() -> Any:
            models.append(package.build(model_fn=workload.model, optimizer_fn=sgd))
            return models[-1]

        batch = workload.batch()
        network = package.TorchNetwork(case.ops(self._module, build))
        program = entered(network, case.mode, set(case.outputs), batch)
        others, wanted = [self._module("op.tensorop").TensorOp()], set[str]()
        if case.beside is not None:
            others, wanted = case.beside.ops(self._module, build), set(case.beside.outputs)
        plain = entered(package.TorchNetwork(others), case.mode, wanted, batch)

        def once(batch: dict[str, Any]) -> Any:
            workload.seed()
            return program.step(batch)

        def close() -> None:
            plain.close()
            program.close()

        model = models[-1] if case.updates else None
        return Program(program.step, batch, once=once, model=model, plain=plain, close=close)
