"""One of several processes that train together: a step of each peer, timed, and its weights.

`bench.ranks` starts it as torchrun would. All of them time the same programs in the same order,
since each step waits for all.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from bench import machine
from bench.workloads import BY_NAME
from bench.workloads.supervised import LEARNING_RATE, Supervised

BY_HAND = "by hand"
FASTNET = "fastnet"
_WARM_UP, _CHECKED = 10, 5

Step = Callable[[dict[str, Any]], dict[str, Any]]


def main() -> None:
    """Measure one workload under one engine, and write down what came of it on the first rank."""
    parser = argparse.ArgumentParser(prog="python -m bench.rank_process", description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("engine", choices=["ddp", "fsdp"])
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--loops", type=int, required=True)
    parser.add_argument("--peers", nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    machine.use_one_thread("torch")
    import torch.distributed as dist

    from fastnet import distributed

    dist.init_process_group("gloo")
    with distributed.run():
        told = measure(
            options.workload, options.engine, options.peers, options.rounds, options.loops
        )
        if distributed.is_main():
            options.output.write_text(json.dumps(told))
    dist.destroy_process_group()


def measure(
    name: str, engine: str, chosen: list[str], rounds: int, loops: int
) -> dict[str, dict[str, Any]]:
    """Time a step of each peer.

    Args:
        name: The workload.
        engine: "ddp" or "fsdp".
        chosen: The peers besides the loop by hand.
        rounds: How many rounds there are.
        loops: How many steps a round has.

    Returns:
        For each peer the nanoseconds of a step in each round (those of the slowest rank), those in
        which the first rank's program worked and did not wait, how many collectives a step has, and
        how far its weights are from those of the loop by hand.
    """
    import torch
    import torch.distributed as dist

    workload = BY_NAME[name]
    assert isinstance(workload, Supervised)
    steps: dict[str, tuple[Any, Step]] = {}
    for peer in (BY_HAND, *(one for one in MAKERS[engine] if one in chosen)):
        steps[peer] = MAKERS[engine][peer](workload)
    batch = _own_batch(workload)
    for _ in range(_CHECKED):
        for _, step in steps.values():
            step(batch)
    expected = _weights(steps[BY_HAND][0])
    distances = {
        peer: max(
            float((one - other).abs().max())
            for one, other in zip(_weights(model), expected, strict=True)
        )
        for peer, (model, _) in steps.items()
    }
    calls = {peer: _collectives(step, batch) for peer, (_, step) in steps.items()}
    taken: dict[str, list[float]] = {peer: [] for peer in steps}
    worked: dict[str, list[float]] = {peer: [] for peer in steps}
    order = list(steps)
    gc.collect()
    gc.disable()
    for _, step in steps.values():
        for _ in range(_WARM_UP):
            step(batch)
    for _ in range(rounds):
        for peer in order:
            step = steps[peer][1]
            dist.barrier()
            begin, working = perf_counter_ns(), thread_time_ns()
            for _ in range(loops):
                step(batch)
            taken[peer].append((perf_counter_ns() - begin) / loops)
            worked[peer].append((thread_time_ns() - working) / loops)
        # each peer comes behind each other one
        order.append(order.pop(0))
    gc.enable()
    slowest = torch.tensor([taken[peer] for peer in steps])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {
        peer: {
            "times": times,
            "worked": worked[peer],
            "collectives": calls[peer],
            "distance": distances[peer],
        }
        for peer, times in zip(steps, slowest.tolist(), strict=True)
    }


def _own_batch(workload: Supervised) -> dict[str, Any]:
    """Return this rank's batch: as large on each, so that the ranks are even."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    return {
        "x": torch.randn(workload.shape, generator=generator),
        "y": torch.randint(0, workload.classes, workload.shape[:1], generator=generator),
    }


def _weights(model: Any) -> list[Any]:
    return [
        (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()
        for one in model.parameters()
    ]


def _collectives(step: Step, batch: dict[str, Any]) -> dict[str, int]:
    """Count what a step communicates, by torch's own names for it."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        step(batch)
    found: dict[str, int] = {}
    for event in profile.events():
        if event.name.startswith("gloo:"):
            name = event.name.removeprefix("gloo:")
            found[name] = found.get(name, 0) + 1
    return found


# --------------------------------------------------------------------------- the peers


def _loop(model: Any, optimizer: Any, backward: Callable[[Any], Any]) -> Step:
    from torch.nn import functional as F

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        pred = model(batch["x"])
        loss = F.cross_entropy(pred, batch["y"])
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        return {**batch, "pred": pred.detach(), "loss": loss.detach()}

    return step


def _backward(loss: Any) -> None:
    loss.backward()


def _ddp(workload: Supervised) -> tuple[Any, Step]:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(workload.model())
    return model, _loop(model, workload.optimizer(model), _backward)


def _fsdp(workload: Supervised) -> tuple[Any, Step]:
    from torch.distributed.fsdp import fully_shard

    model: Any = workload.model()
    fully_shard(model)
    return model, _loop(model, workload.optimizer(model), _backward)


def _fastnet(engine: str) -> Callable[[Supervised], tuple[Any, Step]]:
    def make(workload: Supervised) -> tuple[Any, Step]:
        from torch.optim import SGD

        import fastnet
        from fastnet.op.tensorop.loss import CrossEntropy
        from fastnet.op.tensorop.model import ModelOp, UpdateOp

        model = fastnet.build(
            workload.model, lambda parameters: SGD(parameters, lr=LEARNING_RATE), parallel=engine
        )
        network = fastnet.Network(
            [
                ModelOp(model, "x", "pred"),
                CrossEntropy(("pred", "y"), "loss", from_logits=True),
                UpdateOp(model, "loss"),
            ]
        )
        network(mode="train", epoch=1, desired_output_keys={"pred", "loss"})
        network.__enter__()
        return model, network.run_step

    return make


def _fabric(workload: Supervised) -> tuple[Any, Step]:
    import torch.distributed as dist
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    raw = workload.model()
    model, optimizer = fabric.setup(raw, workload.optimizer(raw))
    return model, _loop(model, optimizer, fabric.backward)


def _accelerate(workload: Supervised) -> tuple[Any, Step]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    raw = workload.model()
    model, optimizer = accelerator.prepare(raw, workload.optimizer(raw))
    return model, _loop(model, optimizer, accelerator.backward)


MAKERS: dict[str, dict[str, Callable[[Supervised], tuple[Any, Step]]]] = {
    "ddp": {
        BY_HAND: _ddp,
        FASTNET: _fastnet("ddp"),
        "Fabric": _fabric,
        "Accelerate": _accelerate,
    },
    "fsdp": {BY_HAND: _fsdp, FASTNET: _fastnet("fsdp")},
}

if __name__ == "__main__":
    main()
