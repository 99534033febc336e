"""Train steps of processes that train together: `python -m bench.ranks`.

Two ranks over gloo on this machine, one thread each: fastnet, also with compiled steps, beside the
hand-written loop, `torch.compile`, Fabric and Accelerate in DistributedDataParallel, and beside the
hand-written loop in FSDP2. Rounds are interleaved, and the slowest rank's counts. Collectives are
counted, and weights compared.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from bench import machine, pages, peers, processes
from bench.tables import markdown_table
from bench.timing import Spread
from bench.workloads import BY_NAME
from bench.workloads.torch_models import Supervised
from bench.workloads.workload import weights

# Workloads and engines.
CASES = (
    ("mlp_train", "ddp"),
    ("mlp_train", "fsdp"),
    ("modules120_train", "ddp"),
    ("modules120_train", "fsdp"),
    ("compiled_gpt_adam", "ddp"),
)
# Peers and their packages, by engine.
PEERS = {
    "ddp": {
        "bare": "torch",
        "fastnet": "fastnet",
        "fastnet_compiled": "fastnet",
        "ddp_compiled": "torch",
        "fabric": "lightning_fabric",
        "accelerate": "accelerate",
    },
    "fsdp": {"bare": "torch", "fastnet": "fastnet"},
}
# The titles of the peers that no other page has, and their colors in plots.
TITLES = {
    "fastnet_compiled": "fastnet, compile=True",
    "ddp_compiled": "torch.compile(DDP(model))",
}
COLORS = {"fastnet_compiled": peers.SKY, "ddp_compiled": peers.ORANGE}
GOAL = 1.02
# By how much weights may differ from the loop's: compilers change the order of sums, and Adam moves
# a weight whose gradient consists of rounding errors as far as others.
_TOLERANCE, _TOLERANCE_COMPILED = 1e-6, {"compiled_gpt_adam": 1e-2}
_WARM_UP, _CHECKED = 10, 5

Step = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """The measurements of one peer.

    Microseconds are those of a step. The ratio is to the hand-written loop, and the distance is
    that of the weights from the loop's.
    """

    workload: str
    engine: str
    ranks: int
    peer: str
    microseconds: float
    ratio: Spread
    collectives: dict[str, int]
    distance: float


def measure(
    workload: str, engine: str, ranks: int, rounds: int, loops: int, chosen: Sequence[str]
) -> list[Line]:
    """Measure peers, the hand-written loop first, in rounds of `loops` steps."""
    installed = [peer for peer in chosen if peers.installed(PEERS[engine][peer])]
    arguments = (workload, engine, installed, rounds, loops)
    found = processes.call_ranks("bench.ranks:measure_rank", *arguments, ranks=ranks)
    times = {peer: np.array(one["times"]) for peer, one in found.items()}
    return [
        Line(
            workload,
            engine,
            ranks,
            _title(peer),
            float(np.median(times[peer])) / 1000,
            Spread.of(times[peer] / times["bare"]),
            one["collectives"],
            one["distance"],
        )
        for peer, one in found.items()
    ]


def _title(peer: str) -> str:
    return TITLES.get(peer) or peers.title(peer)


def disagreements(lines: Sequence[Line]) -> list[str]:
    """Return a sentence for each peer that differs from the hand-written loop before it."""
    found = []
    by_hand = lines[0]
    for line in lines:
        if line.peer == peers.title("bare"):
            by_hand = line
        where = f"{line.peer}, {line.workload} in {line.engine}"
        if line.collectives != by_hand.collectives:
            found.append(f"{where}: {line.collectives}, not {by_hand.collectives}.")
        is_compiled = line.peer in TITLES.values()
        tolerance = _TOLERANCE_COMPILED.get(line.workload, 1e-5) if is_compiled else _TOLERANCE
        if line.distance > tolerance:
            found.append(f"{where}: weights differ by {line.distance:.1e}.")
    return found


def table(lines: Sequence[Line]) -> str:
    """Return the comparison in Markdown."""
    rows = []
    for line in lines:
        goal = ""
        if line.peer == "fastnet":
            close = line.ratio.low <= GOAL <= line.ratio.high
            goal = "close" if close else "met" if line.ratio.median <= GOAL else "missed"
            goal += f" ({GOAL})"
        collectives = ", ".join(f"{count} {name}" for name, count in line.collectives.items())
        rows.append(
            [
                line.workload,
                line.engine,
                line.ranks,
                line.peer,
                f"{line.microseconds:.0f}",
                f"{line.ratio.median:.3f}",
                f"{line.ratio.low:.3f} to {line.ratio.high:.3f}",
                collectives or "none",
                goal,
            ]
        )
    columns = ["step", "engine", "ranks", "peer", "µs", "ratio to the hand-written loop"]
    columns += ["quartiles", "collectives", "goal"]
    return "\n\n".join([markdown_table(columns, rows, left=4), *disagreements(lines)])


def measure_rank(
    name: str, engine: str, chosen: list[str], rounds: int, loops: int
) -> dict[str, dict[str, Any]]:
    """Time a step of each peer, on one of several ranks.

    Returns:
        For each peer the nanoseconds of a step in each round (of the slowest rank), the collectives
        of a step, and the distance of its weights.
    """
    machine.use_threads("torch", 1)
    import torch
    import torch.distributed as dist

    from fastnet import distributed

    workload = BY_NAME[name]
    assert isinstance(workload, Supervised)
    dist.init_process_group("gloo")
    with distributed.run():
        steps = {peer: _make(peer, engine, workload) for peer in chosen}
        batch = _own_batch(workload)
        for _ in range(_CHECKED):
            for _, step in steps.values():
                step(batch)
        found: dict[str, dict[str, Any]] = {}
        expected = _full_weights(steps["bare"][0])
        for peer, (model, step) in steps.items():
            pairs = zip(_full_weights(model), expected, strict=True)
            found[peer] = {
                "distance": max(float(abs(one - other).max()) for one, other in pairs),
                "collectives": _collectives(step, batch),
                "times": [],
            }
            for _ in range(_WARM_UP):
                step(batch)
        order = list(steps)
        gc.collect()
        gc.disable()
        for _ in range(rounds):
            for peer in order:
                step = steps[peer][1]
                dist.barrier()
                begin = perf_counter_ns()
                for _ in range(loops):
                    step(batch)
                found[peer]["times"].append((perf_counter_ns() - begin) / loops)
            order.append(order.pop(0))
        gc.enable()
        for one in found.values():
            slowest = torch.tensor(one["times"])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            one["times"] = slowest.tolist()
    dist.destroy_process_group()
    return found


def _make(peer: str, engine: str, workload: Supervised) -> tuple[Any, Step]:
    """Return the model of a peer and its step."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from bench.peers.loops import backward, train_loop

    if peer in ("fastnet", "fastnet_compiled"):
        return _fastnet(engine, workload, compile=peer == "fastnet_compiled")
    model: Any = workload.model()
    optimizer = workload.optimizer(model.parameters())
    if peer == "fabric":
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
        fabric.launch()
        model, wrapped = fabric.setup(model, optimizer)
        return model, train_loop(model, wrapped, fabric.backward)
    if peer == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, wrapped = accelerator.prepare(model, optimizer)
        return model, train_loop(model, wrapped, accelerator.backward)
    if engine == "fsdp":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    called = torch.compile(model) if peer == "ddp_compiled" else model
    return model, train_loop(called, workload.optimizer(model.parameters()), backward)


def _fastnet(engine: str, workload: Supervised, compile: bool) -> tuple[Any, Step]:
    import fastnet
    from fastnet.op.tensorop.loss import CrossEntropy
    from fastnet.op.tensorop.model import ModelOp, UpdateOp

    model = fastnet.build(workload.model, workload.optimizer, parallel=engine)
    network = fastnet.Network(
        [
            ModelOp(model, "x", "pred"),
            CrossEntropy(("pred", "y"), "loss", from_logits=True),
            UpdateOp(model, "loss"),
        ],
        compile=compile,
    )
    network(mode="train", epoch=1, desired_output_keys={"pred", "loss"}).__enter__()
    return model, network.run_step


def _own_batch(workload: Supervised) -> dict[str, Any]:
    """Return this rank's batch, of the same size on each."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(1 + dist.get_rank())

    def draw(like: torch.Tensor) -> torch.Tensor:
        if like.is_floating_point():
            return torch.randn(like.shape, generator=generator)
        return torch.randint(0, workload.classes, like.shape, generator=generator)

    return {key: draw(value) for key, value in workload.batch().items()}


def _full_weights(model: Any) -> list[Any]:
    if any(hasattr(one, "full_tensor") for one in model.parameters()):
        return [one.full_tensor().detach().numpy() for one in model.parameters()]
    return [one.copy() for one in weights(model)]


def _collectives(step: Step, batch: dict[str, Any]) -> dict[str, int]:
    """Count the collectives of a step by torch's names."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        step(batch)
    names = [event.name for event in profile.events()]
    return dict(Counter(name.removeprefix("gloo:") for name in names if name.startswith("gloo:")))


def page(ranks: int, rounds: int, loops: int) -> tuple[str, dict[str, Any]]:
    """Return the page of the measurements, and its data."""
    lines = [
        line
        for workload, engine in CASES
        for line in measure(workload, engine, ranks, rounds, loops, list(PEERS[engine]))
    ]
    data = {"versions": machine.versions("torch"), "lines": [asdict(line) for line in lines]}
    return f"{table(lines)}\n", data


if __name__ == "__main__":
    options = {
        "ranks": (2, "processes"),
        "rounds": (101, "rounds of each peer"),
        "loops": (20, "steps of a round"),
    }
    sys.exit(pages.run("ranks", __doc__, page, **options))
