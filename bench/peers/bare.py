"""The baseline: a hand-written PyTorch loop, written with care for speed.

Each program returns its batch with the new keys added, in a new dict. With `strict` it leaves out
what a step needs and a microbenchmark does not: `torch.no_grad()` around a chain, the containers
around a nest's tensors. With `fused` its optimizer is torch's fused one.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch.nn import functional as F

from bench.peers.loops import Step, backward, infer_loop, train_loop
from bench.program import Program
from bench.workloads.chains import Census, Identity, IdentityChain, LiveTensors, Measuring
from bench.workloads.compiled import AdversarialPair, ElementwiseChain
from bench.workloads.nests import AXIS, DeepNest, ManyKeys, Nest, Slicing
from bench.workloads.ops import OpCost
from bench.workloads.torch_models import ForeignBatch, Supervised
from bench.workloads.workload import Workload

STATE: dict[str, Any] = {"mode": "infer"}


def make(workload: Workload, strict: bool = False, fused: bool = False) -> Program | None:
    """Return the hand-written loop of `workload`.

    Args:
        workload: The workload.
        strict: Whether to make only the calls that are the work itself.
        fused: Whether the optimizer is fused; only for train steps.
    """
    if strict:
        return _strict(workload)
    match workload:
        case Supervised(training=True) if not (fused and isinstance(workload, ForeignBatch)):
            return _train(workload, fused)
        case AdversarialPair():
            return _adversarial_pair(workload, fused)
    return None if fused else _without_training(workload)


def _without_training(workload: Workload) -> Program | None:
    match workload:
        case Supervised():
            model = workload.model()
            return Program(infer_loop(model), workload.batch(), model=model)
        case IdentityChain():
            return Program(_chain(workload), workload.batch())
        case Measuring():
            plain = Program(_chain(workload), workload.batch())
            return Program(_measured_chain(workload), workload.batch(), plain=plain)
        case ElementwiseChain():
            return Program(_elementwise_chain(workload), workload.batch())
        case LiveTensors():
            return Program(_live_tensors(workload), workload.batch())
        case DeepNest():
            return Program(_deep_detach(workload.size), workload.nest())
        case Nest():
            return Program(_detach, workload.nest())
        case Slicing():
            return Program(_slicing(), workload.batch())
        case ManyKeys():
            return Program(_many_keys(workload), workload.batch())
        case OpCost():
            return _op_cost(workload)
    return None


def _train(workload: Supervised, fused: bool) -> Program:
    """Train on one batch; convert arrays first, and compute a metric last, where there are any."""
    model = workload.model()
    train = train_loop(model, workload.optimizer(model.parameters(), fused))

    def foreign(batch: dict[str, Any]) -> Any:
        tensors = {key: torch.from_numpy(array) for key, array in batch.items()}
        return {**train(tensors), **batch}

    step = foreign if isinstance(workload, ForeignBatch) else train
    return Program(step, workload.batch(), model=model)


def _adversarial_pair(workload: AdversarialPair, fused: bool) -> Program:
    """Compute the gradients of both models before either is updated."""
    models = workload.model()
    generator = models.get_submodule("generator")
    discriminator = models.get_submodule("discriminator")
    optimizers = [workload.optimizer(one.parameters(), fused) for one in models.children()]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        fake = generator(batch["z"])
        generator_loss = F.mse_loss(discriminator(fake), batch["real"])
        optimizers[0].zero_grad()
        backward(generator_loss)
        optimizers[1].zero_grad()
        of_real = F.mse_loss(discriminator(batch["x"]), batch["real"])
        of_made = F.mse_loss(discriminator(fake.detach()), batch["made"])
        loss = of_real + of_made
        backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        return {**batch, "g_loss": generator_loss.detach(), "d_loss": loss.detach()}

    return Program(step, workload.batch(), model=models)


def _chain(workload: IdentityChain | Measuring, no_grad: bool = True) -> Step:
    """Call bound `forward` methods in turn; the value is passed on without looking up keys."""
    forwards = [Identity().forward for _ in range(workload.size)]
    last = workload.keys[-1]

    def strict(batch: dict[str, Any]) -> dict[str, Any]:
        x = batch["k0"]
        for forward in forwards:
            x = forward(x, STATE)
        return {**batch, last: x}

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            x = batch["k0"]
            for forward in forwards:
                x = forward(x, STATE)
            return {**batch, last: x}

    return step if no_grad else strict


def _measured_chain(workload: Measuring) -> Step:
    """Note the time before each op and after the last, in a list that is dropped."""
    forwards = [Identity().forward for _ in range(workload.size)]
    last = workload.keys[-1]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        times: list[float] = []
        note = times.append
        with torch.no_grad():
            x = batch["k0"]
            for forward in forwards:
                note(perf_counter())
                x = forward(x, STATE)
            note(perf_counter())
            return {**batch, last: x}

    return step


def _elementwise_chain(workload: ElementwiseChain) -> Step:
    functions, last = workload.functions(), workload.keys[-1]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            value = batch["k0"]
            for function in functions:
                value = function(value)
            return {**batch, last: value}

    return step


def _live_tensors(workload: LiveTensors) -> Any:
    """Pass each new tensor on, which drops the one before."""

    def step(batch: dict[str, Any]) -> int:
        census = Census()
        with torch.no_grad():
            x = batch["k0"]
            for _ in range(workload.size):
                x = census.grow(x)
        return census.most

    return step


def _detach(nest: dict[str, Any]) -> dict[str, Any]:
    """Detach a nest of known structure, and build the same containers again."""
    meta = nest["meta"]
    masks = meta["masks"]
    return {
        "image": nest["image"].detach(),
        "label": nest["label"].detach(),
        "boxes": [box.detach() for box in nest["boxes"]],
        "pyramid": tuple([level.detach() for level in nest["pyramid"]]),
        "meta": {
            "scale": meta["scale"].detach(),
            "shift": meta["shift"].detach(),
            "masks": {
                "inner": [mask.detach() for mask in masks["inner"]],
                "outer": tuple([mask.detach() for mask in masks["outer"]]),
            },
        },
    }


def _deep_detach(depth: int) -> Step:
    """Detach tensors in dicts of known depth, and build the same dicts again."""

    def detach(nest: dict[str, Any], depth: int) -> dict[str, Any]:
        if depth:
            return {"inner": detach(nest["inner"], depth - 1)}
        return {key: tensor.detach() for key, tensor in nest.items()}

    return lambda nest: detach(nest, depth)


def _slicing() -> Step:
    """Slice with one `unbind`, run the op on each slice, and merge with one `stack`."""
    forward = Identity().forward

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            parts = [forward(part, STATE) for part in batch["x"].unbind(AXIS)]
            return {**batch, "y": torch.stack(parts, AXIS)}

    return step


def _many_keys(workload: ManyKeys) -> Step:
    """Read the keys into a list, call the op, and add its values to the batch."""
    forward = Identity().forward
    inputs, outputs = workload.inputs, workload.outputs

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            values = forward([batch[key] for key in inputs], STATE)
            return {**batch, **dict(zip(outputs, values, strict=True))}

    return step


def _op_cost(workload: OpCost) -> Program:
    """Make an op's calls; their results are not even put into a dict."""
    from bench.peers.torch_ops import calls_of

    case = workload.case
    model = workload.model()
    calls = calls_of(case.name, model)
    batch = workload.batch()

    def result(values: Any) -> dict[str, Any]:
        values = (values,) if isinstance(values, torch.Tensor) else values
        made = zip(case.outputs, values, strict=True)
        return {**batch, **{key: value.detach() for key, value in made}}

    def without_gradients(batch: dict[str, Any]) -> Any:
        with torch.no_grad():
            return calls(batch)

    def nothing(batch: dict[str, Any]) -> None:
        with torch.no_grad():
            pass

    step, plain = calls, case.beside and Program(calls_of(case.beside.name, model), batch)
    if case.runs_model:
        step, plain = without_gradients, Program(nothing, batch)

    def once(batch: dict[str, Any]) -> Any:
        workload.seed()
        return step(batch)

    trained = model if case.updates else None
    return Program(step, batch, once=once, result=result, model=trained, plain=plain)


def _strict(workload: Workload) -> Program | None:
    """Return the loop with only the calls that are the work itself."""
    if isinstance(workload, IdentityChain):
        return Program(_chain(workload, no_grad=False), workload.batch())
    if not isinstance(workload, Nest) or isinstance(workload, DeepNest):
        return None
    from torch.utils._pytree import tree_flatten, tree_unflatten

    tensors, structure = tree_flatten(workload.nest())

    def detach(tensors: list[Any]) -> list[Any]:
        return [tensor.detach() for tensor in tensors]

    return Program(detach, tensors, result=lambda made: tree_unflatten(made, structure))
