"""fastnet's and FastEstimator's programs in PyTorch: only the name of the package differs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch

from bench.peers._torch_device import DEVICE
from bench.program import Program
from bench.workloads.compiled import AdversarialPair, Chain, Compiled, Divided
from bench.workloads.growth import Fused, ManyKeys
from bench.workloads.identity_chain import IdentityChain
from bench.workloads.live_tensors import Census, LiveTensors
from bench.workloads.measuring import Measuring
from bench.workloads.nest import Nest
from bench.workloads.op_cost import OpCost
from bench.workloads.open_epoch import OpenEpoch
from bench.workloads.slicing import AXIS, Slicing
from bench.workloads.supervised import LEARNING_RATE, Supervised
from bench.workloads.workload import Workload

# A profile keeps a number for each op of each step: it must not grow for as long as rounds go on.
_ROUNDS_A_PROFILE = 10


class TorchNetworkPrograms:
    """Makes the programs in PyTorch of one package that has FastEstimator's API.

    Args:
        package: `"fastnet"` or `"fastestimator"`.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def make(self, workload: Workload) -> Program | None:
        """Return the package's program for `workload`."""
        match workload:
            case IdentityChain():
                return self._identity_chain(workload)
            case Supervised():
                return self._supervised(workload)
            case AdversarialPair():
                return self._adversarial_pair(workload)
            case Chain():
                return self._chain(workload)
            case OpenEpoch(which="first"):
                return self._open_first(workload)
            case OpenEpoch():
                return self._open(workload)
            case Nest(action="detach"):
                return Program(self._module("util").detach_tensors, workload.nest())
            case Nest():
                return self._move(workload)
            case Slicing():
                return self._slicing(workload)
            case Fused():
                return self._fused(workload)
            case ManyKeys():
                return self._many_keys(workload)
            case LiveTensors():
                return self._live_tensors(workload)
            case Measuring():
                return self._measuring(workload)
            case OpCost():
                return self._op_cost(workload)
        return None

    def _module(self, name: str) -> Any:
        return import_module(f"{self._package}.{name}")

    def _entered(self, network: Any, mode: str, wanted: set[str]) -> Program:
        """Return a program that runs steps in `network`, which is entered now, once."""
        context = network(mode=mode, epoch=1, ds_id="", desired_output_keys=wanted)
        context.__enter__()
        return Program(network.run_step, close=lambda: context.__exit__(None, None, None))

    def _identity(self) -> Any:
        """Return an op class of the user's own."""
        base = self._module("op.tensorop").TensorOp

        class Identity(base):  # type: ignore[misc, valid-type]
            """An op that returns what it is given."""

            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                return data

        return Identity

    def _identity_ops(self, keys: list[str]) -> list[Any]:
        """Return an op for each step along `keys`."""
        identity = self._identity()
        return [identity(inputs=key, outputs=after) for key, after in pairwise(keys)]

    def _identity_chain(self, workload: IdentityChain) -> Program:
        keys = workload.keys
        network = self._module("network").TorchNetwork(ops=self._identity_ops(keys))
        return _with_batch(self._entered(network, "infer", {keys[-1]}), workload.batch())

    def _supervised(self, workload: Supervised) -> Program:
        modules = self._module("op.tensorop.model")
        losses = self._module("op.tensorop.loss")
        package = self._module("network")
        optimizer = workload.optimizer_of if isinstance(workload, Compiled) else _sgd
        model = package.build(model_fn=workload.model, optimizer_fn=optimizer)

        def count(pred: torch.Tensor, y: torch.Tensor) -> int:
            return int((pred.argmax(-1) == y).sum().item())

        metric = self._module("op.tensorop").LambdaOp(count, ("pred", "y"), "correct")
        network = package.Network(
            [
                modules.ModelOp(model=model, inputs="x", outputs="pred"),
                losses.CrossEntropy(inputs=("pred", "y"), outputs="loss", from_logits=True),
                modules.UpdateOp(model=model, loss_name="loss"),
                *([metric] if isinstance(workload, Divided) else []),
            ],
            **({"compile": True} if isinstance(workload, Compiled) else {}),
        )
        program = self._entered(network, workload.mode, workload.wanted)
        return _with_batch(program, workload.batch(), model=model)

    def _adversarial_pair(self, workload: AdversarialPair) -> Program:
        modules = self._module("op.tensorop.model")
        error = self._module("op.tensorop.loss").MeanSquaredError
        base = self._module("op.tensorop").TensorOp
        package = self._module("network")
        pair = workload.model()
        generator, discriminator = package.build(
            lambda: [pair.get_submodule("generator"), pair.get_submodule("discriminator")],
            optimizer_fn=[workload.optimizer] * 2,
        )

        class Add(base):  # type: ignore[misc, valid-type]
            """The loss of the discriminator."""

            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                return data[0] + data[1]

        class Detach(base):  # type: ignore[misc, valid-type]
            """What the generator is not trained by."""

            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                return data.detach()

        network = package.Network(
            [
                modules.ModelOp(generator, inputs="z", outputs="fake"),
                modules.ModelOp(discriminator, inputs="fake", outputs="of_fake"),
                error(inputs=("of_fake", "real"), outputs="g_loss"),
                modules.UpdateOp(generator, loss_name="g_loss", defer=True),
                Detach(inputs="fake", outputs="still"),
                modules.ModelOp(discriminator, inputs="x", outputs="of_x"),
                modules.ModelOp(discriminator, inputs="still", outputs="of_still"),
                error(inputs=("of_x", "real"), outputs="x_loss"),
                error(inputs=("of_still", "made"), outputs="still_loss"),
                Add(inputs=("x_loss", "still_loss"), outputs="d_loss"),
                modules.UpdateOp(discriminator, loss_name="d_loss", defer=True),
            ],
            compile=True,
        )
        program = self._entered(network, "train", {"g_loss", "d_loss"})
        return _with_batch(program, workload.batch(), model=pair)

    def _chain(self, workload: Chain) -> Program:
        op = self._module("op.tensorop").LambdaOp
        functions = zip(workload.functions(), pairwise(workload.keys), strict=True)
        ops = [op(fn, inputs=key, outputs=after) for fn, (key, after) in functions]
        network = self._module("network").TorchNetwork(ops, compile=True)
        return _with_batch(self._entered(network, "infer", {workload.keys[-1]}), workload.batch())

    def _open_first(self, workload: OpenEpoch) -> Program:
        """Open networks that were never open, each made of new ops outside the clock."""
        make_network = self._module("network").TorchNetwork
        keys = workload.keys
        wanted = {keys[-1]}

        def fresh() -> Any:
            return make_network(ops=self._identity_ops(keys))

        def step(network: Any) -> None:
            with network(mode="infer", epoch=1, ds_id="", desired_output_keys=wanted):
                pass

        def probe() -> Any:
            with (network := fresh())(mode="infer", epoch=1, ds_id="", desired_output_keys=wanted):
                return network.run_step(workload.batch())

        return Program(step, fresh=fresh, probe=probe)

    def _open(self, workload: OpenEpoch) -> Program:
        """Open one network time and again, at the same epoch or at the next."""
        keys = workload.keys
        network = self._module("network").TorchNetwork(ops=self._identity_ops(keys))
        wanted = {keys[-1]}
        epoch = 1

        def again(_: None) -> None:
            with network(mode="infer", epoch=1, ds_id="", desired_output_keys=wanted):
                pass

        def next_epoch(_: None) -> None:
            nonlocal epoch
            epoch += 1
            with network(mode="infer", epoch=epoch, ds_id="", desired_output_keys=wanted):
                pass

        step: Callable[[None], None] = again if workload.which == "again" else next_epoch

        def probe() -> Any:
            step(None)
            with network(mode="infer", epoch=epoch, ds_id="", desired_output_keys=wanted):
                return network.run_step(workload.batch())

        return Program(step, probe=probe)

    def _move(self, workload: Nest) -> Program:
        move = self._module("util").move_tensors_to_device
        return Program(lambda nest: move(nest, DEVICE), workload.nest())

    def _slicing(self, workload: Slicing) -> Program:
        slicer = self._module("slicer").AxisSlicer(axis=AXIS, slice="x", unslice="y")
        make_network = self._module("network").TorchNetwork
        network = make_network(ops=self._identity_ops(["x", "y"]), slicers=slicer)
        return _with_batch(self._entered(network, "infer", {"y"}), workload.batch())

    def _fused(self, workload: Fused) -> Program:
        fuse = self._module("op.tensorop.meta").Fuse
        (op,) = self._identity_ops(["k0", "k1"])
        for _ in range(workload.depth):
            op = fuse([op])
        network = self._module("network").TorchNetwork(ops=op)
        return _with_batch(self._entered(network, "infer", {"k1"}), workload.batch())

    def _many_keys(self, workload: ManyKeys) -> Program:
        op = self._identity()(inputs=workload.inputs, outputs=workload.outputs)
        # Of one key each, an op is given a bare value, and may as well be given a list.
        op.in_list = op.out_list = True
        network = self._module("network").TorchNetwork(ops=op)
        program = self._entered(network, "infer", set(workload.outputs))
        return _with_batch(program, workload.batch())

    def _live_tensors(self, workload: LiveTensors) -> Program:
        base = self._module("op.tensorop").TensorOp
        census = Census()

        class Grow(base):  # type: ignore[misc, valid-type]
            """An op that returns a new tensor."""

            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                return census.grow(data)

        keys = workload.keys
        ops = [Grow(inputs=key, outputs=after) for key, after in pairwise(keys)]
        network = self._module("network").TorchNetwork(ops=ops)
        program = self._entered(network, "infer", {keys[-1]})

        def step(batch: dict[str, Any]) -> int:
            program.step(batch)
            return census.most

        return Program(step, workload.batch(), close=program.close)

    def _measuring(self, workload: Measuring) -> Program:
        """Run a chain's step in a network that is profiled; a second network runs plain steps."""
        keys = workload.chain.keys
        network = self._module("network").TorchNetwork(ops=self._identity_ops(keys))
        program = self._entered(network, "infer", {keys[-1]})
        plain = self._identity_chain(workload.chain)
        profile = import_module(self._package).profile
        profiling = profile(network)
        profiling.__enter__()
        rounds = 0

        def renew() -> None:
            nonlocal profiling, rounds
            rounds += 1
            if rounds % _ROUNDS_A_PROFILE == 0:
                profiling.__exit__(None, None, None)
                profiling = profile(network)
                profiling.__enter__()

        def close() -> None:
            profiling.__exit__(None, None, None)
            plain.close()
            program.close()

        return Program(
            program.step, workload.batch(), plain=plain, before_a_round=renew, close=close
        )

    def _op_cost(self, workload: OpCost) -> Program | None:
        """Run an op in a network of its own; the plain step is that of an op that does nothing."""
        case = workload.case
        if (self._package, workload.framework) in case.not_by:
            return None
        package = self._module("network")
        made: list[Any] = []

        def build() -> Any:
            made.append(package.build(model_fn=workload.model, optimizer_fn=_sgd))
            return made[-1]

        ops = case.ops(self._module, build)
        wanted = set(case.outputs)
        program = self._entered(package.TorchNetwork(ops=ops), case.mode, wanted)
        others, left = [self._module("op.tensorop").TensorOp()], set[str]()
        if case.beside is not None:
            others, left = case.beside.ops(self._module, build), set(case.beside.outputs)
        plain = self._entered(package.TorchNetwork(ops=others), case.mode, left)

        def once(batch: dict[str, Any]) -> Any:
            workload.seed()
            return program.step(batch)

        def close() -> None:
            plain.close()
            program.close()

        batch = workload.batch()
        return Program(
            program.step,
            batch,
            once=once,
            model=made[-1] if case.updates else None,
            plain=_with_batch(plain, batch),
            close=close,
        )


def _sgd(parameters: Any) -> Any:
    """Return the optimizer of a supervised workload, as `build` asks for it."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


def _with_batch(program: Program, batch: Any, model: Any = None) -> Program:
    """Return `program` with its argument and its model."""
    return Program(program.step, batch, model=model, close=program.close)
