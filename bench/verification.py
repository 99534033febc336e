"""False alarms and missed faults of verified steps: `python -m bench.verification`.

Each model is compiled once in a process of its own, with Inductor. From three seeds its first step
and the one after 20 steps are verified, which must raise no alarm. Faults are put into the program
of a few models, and verification must find each that changes how a tensor is updated by more than
5 %, and by more than ten times what disturbing all inputs in their last bits does.

Needs torchvision, timm and transformers for some of the models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from bench import machine, pages, processes
from bench.architectures import ARCHITECTURES, OPTIMIZERS, Architecture
from bench.tables import markdown_table
from fastnet import CompileOptions
from fastnet.network import TorchNetwork

SEEDS = 3
STEPS = 20
# Faults are put into these, whose programs run as graphs.
FAULTY = ("ResNet-18 for CIFAR, batch 8", "GPT, width 256, dropout", "VAE", "dilated convolutions")
# What a fault must change at least to be found: a part of a change, and times what disturbing does.
LEAST, TIMES = 0.05, 10.0

# From the values of a tensor before and after a step to those that a faulty program leaves.
Fault = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FAULTS: dict[str, Fault] = {
    "not written": lambda before, after: before,
    "written twice": lambda before, after: after + (after - before),
    "of the other sign": lambda before, after: before - (after - before),
    "10 % too small": lambda before, after: before + 0.9 * (after - before),
    "10 % too large": lambda before, after: before + 1.1 * (after - before),
    "of other elements": lambda before, after: (
        before + (after - before).flatten().roll(1).view_as(after)
    ),
    "one half not written": lambda before, after: torch.where(
        torch.arange(after.numel()).view_as(after) * 2 < after.numel(), before, after
    ),
    "one element infinite": lambda before, after: torch.where(
        torch.arange(after.numel()).view_as(after) == 0, torch.inf, after
    ),
}


# --- false alarms ---------------------------------------------------------------------------------


def alarms(name: str, optimizer: str) -> dict[str, Any]:
    """Call `find_alarms` for the model of a name."""
    machine.use_threads("torch", 1)
    return find_alarms(ARCHITECTURES[name], optimizer)


def find_alarms(architecture: Architecture, optimizer: str) -> dict[str, Any]:
    """Verify steps of a model.

    Returns:
        Under "alarms" what was found, under "parameters" their number, and under "reasons" why
        steps were not compiled or not verified.
    """
    models, ops = architecture.build(optimizer, 0)
    # Programs verify each step of this number, counted from their first.
    network = TorchNetwork(ops, compile=CompileOptions(verify=STEPS))
    generator = torch.Generator().manual_seed(5)

    def run(count: int) -> None:
        for _ in range(count):
            network.run_step(architecture.batch(generator))

    found: list[str] = []
    with network("train", 1):
        run(1)
        for seed in range(SEEDS):
            run(STEPS - 1)
            _restart(models, architecture.build(optimizer, seed)[0])
            torch.manual_seed(seed)
            for place in ("first step", f"after {STEPS} steps"):
                try:
                    run(1)
                except RuntimeError as error:
                    found.append(f"{place}: {error}")
                if place == "first step":
                    run(STEPS - 1)
    reasons = [one.fallback or one.unverified for one in network.traces]
    count = sum(one.numel() for model in models.values() for one in model.parameters())
    return {"alarms": found, "parameters": count, "reasons": [one for one in reasons if one]}


def _restart(models: dict[str, Any], fresh: dict[str, Any]) -> None:
    """Give models the weights of others, and their optimizers empty states, in place."""
    for name, model in models.items():
        model.load_state_dict(fresh[name].state_dict())
        for state in model.current_optimizer.state.values():
            for value in state.values():
                value.zero_()


# --- faults ---------------------------------------------------------------------------------------


class FaultyBackend:
    """Runs graphs, then applies a fault to one of the tensors that they write.

    Args:
        faults: The faults by name.

    Attributes:
        fault: The fault; None for none.
        index: The input to which it is applied.
        written: The inputs that the last step has written, with their new values.
        off: How far the fault was off, as a part of the change in the step.
        disturbed: How far disturbing was.
    """

    def __init__(self, faults: Mapping[str, Fault] = FAULTS) -> None:
        self._faults = faults
        self.fault: str | None = None
        self.index = 0
        self.written: dict[int, torch.Tensor] = {}
        self.off = self.disturbed = 0.0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*tensors: torch.Tensor) -> Any:
            before = [one.clone() for one in tensors]
            disturbed = [_disturbed(one, place) for place, one in enumerate(tensors)]
            start = disturbed[self.index].clone()
            random_state = torch.get_rng_state()
            graph(*disturbed)
            torch.set_rng_state(random_state)
            results = graph(*tensors)
            self.written = {
                at: new.clone()
                for at, (old, new) in enumerate(zip(before, tensors, strict=True))
                if not torch.equal(old, new)
            }
            if self.fault is not None:
                old, new = before[self.index], tensors[self.index]
                change = new.double() - old
                wrong = self._faults[self.fault](old, new).to(new)
                moved = disturbed[self.index].double() - start - change
                self.disturbed = float(moved.norm() / change.norm())
                self.off = float((wrong.double() - new).norm() / change.norm())
                new.copy_(wrong)
            return results

        return run


def _disturbed(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if not tensor.is_floating_point() or not tensor.dim():
        return tensor.clone()
    noise = torch.rand(tensor.shape, generator=generator).mul_(4).sub_(2).to(tensor.dtype)
    return tensor + noise * torch.finfo(tensor.dtype).eps * tensor


def faults(name: str, optimizer: str) -> list[dict[str, Any]]:
    """Put faults into the program of a model; return how far each was off, and what found it."""
    machine.use_threads("torch", 1)
    architecture = ARCHITECTURES[name]
    models, ops = architecture.build(optimizer, 0)
    backend = FaultyBackend()
    network = TorchNetwork(ops, compile=CompileOptions(backend, verify=1))
    generator = torch.Generator().manual_seed(5)
    results = []
    with network("train", 1):
        for _ in range(3):
            network.run_step(architecture.batch(generator))
        for tensor, index in _places(models, backend.written):
            for fault in FAULTS:
                backend.fault, backend.index = fault, index
                error = None
                try:
                    network.run_step(architecture.batch(generator))
                except RuntimeError as raised:
                    error = str(raised)
                backend.fault = None
                facts = {"off": backend.off, "disturbed": backend.disturbed}
                results.append({"tensor": tensor, "fault": fault, "error": error, **facts})
    return results


def _places(models: dict[str, Any], written: dict[int, torch.Tensor]) -> Iterator[tuple[str, int]]:
    """Yield one of the written inputs of a program for each kind of tensor."""
    kinds: dict[str, list[torch.Tensor]] = {"parameter": [], "buffer": []}
    for model in models.values():
        kinds["parameter"] += model.parameters()
        kinds["buffer"] += [one for one in model.buffers() if one.is_floating_point()]
        for state in model.current_optimizer.state.values():
            for name, value in state.items():
                if value.dim():
                    kinds.setdefault(f"'{name}'", []).append(value)
    for kind, tensors in kinds.items():
        # The eager step has given them the same values, up to rounding.
        found = [
            index
            for index, after in written.items()
            if any(
                one.shape == after.shape and torch.allclose(one, after, 1e-4, 1e-7)
                for one in tensors
            )
        ]
        if found:
            yield kind, found[len(found) // 2]


# --- the page -------------------------------------------------------------------------------------


def _table_of_alarms(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, by_optimizer in found.items():
        counts = [f"{len(one['alarms'])} of {2 * SEEDS}" for one in by_optimizer.values()]
        first = next(iter(by_optimizer.values()))
        rows.append([name, f"{first['parameters']:,}", *counts])
    return markdown_table(["model", "parameters", *OPTIMIZERS], rows, left=1)


def _table_of_faults(found: list[dict[str, Any]]) -> str:
    rows = []
    for fault in FAULTS:
        of_kind = [one for one in found if one["fault"] == fault]
        clear = [one for one in of_kind if _is_clear(one)]
        others = [one for one in of_kind if not _is_clear(one)]
        counts = [f"{sum(map(_is_found, some))} of {len(some)}" for some in (clear, others)]
        rows.append([fault, *counts])
    return markdown_table(["fault", "clear ones found", "others found"], rows, left=1)


def _is_found(fault: dict[str, Any]) -> bool:
    return fault["error"] is not None


def _is_clear(fault: dict[str, Any]) -> bool:
    least = max(LEAST, TIMES * fault["disturbed"])
    return not fault["off"] <= least


def page(models: str) -> tuple[str, None]:
    """Return the page of some models."""
    names = [name for name in ARCHITECTURES if not models or name in models.split(";")]
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        for optimizer in OPTIMIZERS:
            result = processes.call("bench.verification:alarms", name, optimizer)
            print(name, optimizer, result, file=sys.stderr, flush=True)
            found.setdefault(name, {})[optimizer] = result
    faulty = []
    for name in filter(names.__contains__, FAULTY):
        for optimizer in OPTIMIZERS:
            some = processes.call("bench.verification:faults", name, optimizer)
            missed = [one for one in some if _is_clear(one) and not _is_found(one)]
            print(
                name, optimizer, len(some), "faults, missed:", missed, file=sys.stderr, flush=True
            )
            faulty += [{"model": name, "optimizer": optimizer, **one} for one in some]
    return render(found, faulty), None


def render(found: dict[str, dict[str, Any]], faulty: list[dict[str, Any]]) -> str:
    """Return the page of alarms, by model and optimizer, and of faults."""
    reasons = [
        f"- {name}, {optimizer}: {reason}"
        for name, by_optimizer in found.items()
        for optimizer, one in by_optimizer.items()
        for reason in one["reasons"]
    ]
    models = sorted({fault["model"] for fault in faulty})
    return f"""\
# What verification finds

Measured on {machine.processor()}: {machine.version_note("torch")}.

## False alarms

Verified steps that raised an alarm, of {SEEDS} first steps and {SEEDS} after {STEPS} steps each,
with Inductor and random data.

{_table_of_alarms(found)}

{chr(10).join(["Not compiled or not verified:", "", *reasons]) if reasons else "All were compiled."}

## Faults

Faults in one tensor that a program writes, of each kind of tensor, in {", ".join(models)}, with
each optimizer. A clear fault changes how a tensor is updated by more than {LEAST:.0%}, and by more
than {TIMES:.0f} times what disturbing all inputs in their last bits does. Others are not to be
found.

{_table_of_faults(faulty)}
"""


if __name__ == "__main__":
    sys.exit(pages.run("verification", __doc__, page, models=("", "names, with ; between them")))
