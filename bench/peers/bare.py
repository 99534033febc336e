"""The baseline: what a person who knows PyTorch well would write by hand for the same work.

Each function says what it does and why it is a fair loop. All are given the same batch as the peers
and return what the peers must return: the batch with the new keys on top, in a new dict.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch.nn import functional as F

from bench.peers._dispatch import by_hand
from bench.peers._torch_device import DEVICE
from bench.program import Program
from bench.workloads.compiled import AdversarialPair, Chain, Divided
from bench.workloads.dispatch import Dispatch
from bench.workloads.foreign import ForeignBatch
from bench.workloads.growth import DeepNest, Fused, ManyKeys
from bench.workloads.identity_chain import Identity, IdentityChain
from bench.workloads.live_tensors import Census, LiveTensors
from bench.workloads.measuring import Measuring
from bench.workloads.nest import Nest
from bench.workloads.op_cost import OpCost
from bench.workloads.slicing import AXIS, Slicing
from bench.workloads.supervised import Supervised
from bench.workloads.workload import Workload

NAME = "bare loop"


def available() -> bool:
    """It only needs torch."""
    return True


def version() -> str | None:
    """It has none of its own."""
    return None


def make(workload: Workload) -> Program | None:
    """Return the hand-written loop of `workload`."""
    match workload:
        case IdentityChain():
            return _identity_chain(workload)
        case ForeignBatch():
            return _foreign(workload)
        case Divided():
            return _divided(workload)
        case Supervised(training=True):
            return _train(workload)
        case Supervised():
            return _infer(workload)
        case AdversarialPair():
            return _adversarial_pair(workload)
        case Chain():
            return _chain(workload)
        case DeepNest():
            return _deep_nest(workload)
        case Nest(action="detach"):
            return Program(_detach, workload.nest())
        case Nest():
            return Program(_move, workload.nest())
        case Slicing():
            return _slicing(workload)
        case Fused():
            return _fused(workload)
        case ManyKeys():
            return _many_keys(workload)
        case LiveTensors():
            return _live_tensors(workload)
        case Measuring():
            return _measuring(workload)
        case OpCost():
            return _op_cost(workload)
        case Dispatch():
            return by_hand(workload)
    return None


def _identity_chain(workload: IdentityChain) -> Program:
    """Call bound `forward` methods one after the other, under `no_grad` as an infer step must.

    No key is looked up in between: a person would pass the value on, not store it in a dict.
    """
    forwards = [Identity().forward for _ in range(workload.length)]
    state: dict[str, Any] = {"mode": "infer"}
    last = workload.keys[-1]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            x = batch["k0"]
            for forward in forwards:
                x = forward(x, state)
            return {**batch, last: x}

    return Program(step, workload.batch())


def _measuring(workload: Measuring) -> Program:
    """Do as in a chain, and note the time before each op and after the last, in a list a step.

    What comes of the times is not part of it: nothing is summed up, and no list outlives its step.
    """
    forwards = [Identity().forward for _ in range(workload.chain.length)]
    state: dict[str, Any] = {"mode": "infer"}
    last = workload.chain.keys[-1]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        times: list[float] = []
        note = times.append
        with torch.no_grad():
            x = batch["k0"]
            for forward in forwards:
                note(perf_counter())
                x = forward(x, state)
            note(perf_counter())
            return {**batch, last: x}

    return Program(step, workload.batch(), plain=_identity_chain(workload.chain))


def _train(workload: Supervised) -> Program:
    """Train on one batch. The model was put in train mode once, when it was made."""
    model = workload.model()
    optimizer = workload.optimizer(model)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        pred = model(batch["x"])
        loss = F.cross_entropy(pred, batch["y"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {**batch, "pred": pred.detach(), "loss": loss.detach()}

    return Program(step, workload.batch(), model=model)


def _divided(workload: Divided) -> Program:
    """Train on one batch, and count in Python how many predictions are right."""
    train = _train(workload)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        results = train.step(batch)
        right = results["pred"].argmax(-1) == batch["y"]
        return {**results, "correct": int(right.sum().item())}

    return Program(step, train.argument, model=train.model)


def _foreign(workload: ForeignBatch) -> Program:
    """Train on tensors that share the arrays' memory, and return these arrays with the rest."""
    train = _train(workload)

    def step(batch: dict[str, Any]) -> Any:
        tensors = {key: torch.from_numpy(array) for key, array in batch.items()}
        return {**train.step(tensors), **batch}

    return Program(step, train.argument, model=train.model)


def _infer(workload: Supervised) -> Program:
    """Predict on one batch. The model was put in eval mode once, when it was made."""
    model = workload.model()

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, "pred": model(batch["x"])}

    return Program(step, workload.batch(), model=model)


def _adversarial_pair(workload: AdversarialPair) -> Program:
    """Take the gradients of both models before either of them moves."""
    models = workload.model()
    generator = models.get_submodule("generator")
    discriminator = models.get_submodule("discriminator")
    optimizers = [workload.optimizer(one.parameters()) for one in (generator, discriminator)]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        fake = generator(batch["z"])
        generator_loss = F.mse_loss(discriminator(fake), batch["real"])
        optimizers[0].zero_grad()
        generator_loss.backward()  # type: ignore[no-untyped-call]
        optimizers[1].zero_grad()
        of_real = F.mse_loss(discriminator(batch["x"]), batch["real"])
        of_made = F.mse_loss(discriminator(fake.detach()), batch["made"])
        loss = of_real + of_made
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        return {**batch, "g_loss": generator_loss.detach(), "d_loss": loss.detach()}

    return Program(step, workload.batch(), model=models)


def _chain(workload: Chain) -> Program:
    """Call one function after the other, without gradients as an infer step must."""
    functions = workload.functions()
    last = workload.keys[-1]

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            value = batch["k0"]
            for function in functions:
                value = function(value)
            return {**batch, last: value}

    return Program(step, workload.batch())


def _detach(nest: dict[str, Any]) -> dict[str, Any]:
    """Detach a nest whose shape is known, and build the same containers again."""
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


def _move(nest: dict[str, Any]) -> dict[str, Any]:
    """Move a nest whose shape is known, and build the same containers again."""
    meta = nest["meta"]
    masks = meta["masks"]
    return {
        "image": nest["image"].to(DEVICE),
        "label": nest["label"].to(DEVICE),
        "boxes": [box.to(DEVICE) for box in nest["boxes"]],
        "pyramid": tuple([level.to(DEVICE) for level in nest["pyramid"]]),
        "meta": {
            "scale": meta["scale"].to(DEVICE),
            "shift": meta["shift"].to(DEVICE),
            "masks": {
                "inner": [mask.to(DEVICE) for mask in masks["inner"]],
                "outer": tuple([mask.to(DEVICE) for mask in masks["outer"]]),
            },
        },
    }


def _slicing(workload: Slicing) -> Program:
    """Cut with one `unbind`, run the op on each slice, and merge with one `stack`."""
    forward = Identity().forward
    state: dict[str, Any] = {"mode": "infer"}

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            parts = [forward(part, state) for part in batch["x"].unbind(AXIS)]
            return {**batch, "y": torch.stack(parts, AXIS)}

    return Program(step, workload.batch())


def _deep_nest(workload: DeepNest) -> Program:
    """Detach tensors in dicts whose depth is known, and build the same dicts again."""

    def detach(nest: dict[str, Any], depth: int) -> dict[str, Any]:
        if depth:
            return {"inner": detach(nest["inner"], depth - 1)}
        return {key: tensor.detach() for key, tensor in nest.items()}

    depth = workload.depth
    return Program(lambda nest: detach(nest, depth), workload.nest())


def _fused(workload: Fused) -> Program:
    """Call the one op that there is, however many stand around it elsewhere."""
    forward = Identity().forward
    state: dict[str, Any] = {"mode": "infer"}

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            return {**batch, "k1": forward(batch["k0"], state)}

    return Program(step, workload.batch())


def _many_keys(workload: ManyKeys) -> Program:
    """Read the keys into a list, call the op, and lay what it returns over the batch."""
    forward = Identity().forward
    state: dict[str, Any] = {"mode": "infer"}
    inputs, outputs = workload.inputs, workload.outputs

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            values = forward([batch[key] for key in inputs], state)
            return {**batch, **dict(zip(outputs, values, strict=True))}

    return Program(step, workload.batch())


def _live_tensors(workload: LiveTensors) -> Program:
    """Pass each new tensor on, and so drop the one before."""

    def step(batch: dict[str, Any]) -> int:
        census = Census()
        with torch.no_grad():
            x = batch["k0"]
            for _ in range(workload.length):
                x = census.grow(x)
        return census.most

    return Program(step, workload.batch())


def _op_cost(workload: OpCost) -> Program:
    """Make an op's calls, and nothing else: what they return is not even put into a dict."""
    from bench.peers._torch_calls import calls_of

    case = workload.case
    model = workload.model()
    calls = calls_of(case.name, model)
    batch = workload.batch()

    def result(values: Any) -> dict[str, Any]:
        values = (values,) if isinstance(values, torch.Tensor) else values
        made = zip(case.outputs, values, strict=True)
        return {**batch, **{key: value.detach() for key, value in made}}

    def once(batch: dict[str, Any]) -> Any:
        workload.seed()
        return calls(batch)

    trained = model if case.updates else None
    if not case.runs_model:
        beside = case.beside and Program(calls_of(case.beside.name, model), batch)
        return Program(calls, batch, once=once, result=result, model=trained, plain=beside)

    def step(batch: dict[str, Any]) -> Any:
        with torch.no_grad():
            return calls(batch)

    def nothing(batch: dict[str, Any]) -> None:
        with torch.no_grad():
            pass

    return Program(step, batch, once=once, result=result, plain=Program(nothing, batch))
