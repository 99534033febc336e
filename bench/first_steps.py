"""First steps that compile, cold and warm, and their peak memory: `python -m bench.first_steps`.

Each time is of a fresh process: from making the program to the end of its second step, including
the compilers' imports. A cold process has an empty cache on disk, a warm one that of the cold one.
"""

from __future__ import annotations

import functools
import gc
import importlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import machine, pages, peers, processes
from bench.tables import markdown_table
from bench.workloads import BY_NAME
from bench.workloads.compiled import Compiled

PEERS = ("fastnet", "compiled_update")
VERIFIED = ("ResNet-18 for CIFAR, batch 8", "GPT, width 128", "LSTM", "dilated convolutions")
# Goals beside `torch.compile` of model and optimizer, cold and warm, and beside eager steps.
COLD, WARM, MEMORY = 1.1, 0.5, 1.1
_STEPS = 10

# What a first step of fastnet is made of: the column, and the functions whose time it is. The time
# of a function that another one of these calls is not that of the other one.
_PARTS = {
    "imports": ("bench.first_steps:import_compilers",),
    "tracing": ("fastnet.network.torch.compiled.program_set:TorchProgramSet._capture",),
    "lowering": ("fastnet.network.torch.compiled.program_set:lower",),
    "Inductor": ("fastnet.network.torch.compiled.lowering:compile_graph",),
    "C++ compiler": (
        "torch._inductor.async_compile:AsyncCompile.wait",
        "torch._inductor.async_compile:AsyncCompile.cpp_pybinding",
    ),
    "verification": ("fastnet.network.torch.compiled.session:CompiledSession._verified",),
}


def _large() -> Any:
    from torch import nn

    hidden = (nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(1024, 10))


def _unet() -> Any:
    from bench.architectures import DiffusionUNet

    return DiffusionUNet()


def _gru() -> Any:
    from bench.architectures import GRU

    return GRU()


LARGE = Compiled("large_mlp", "MLP of 1.3 M weights", True, _large, (4096, 256), 10, adam=True)
_STEP = "train step, Adam"
WORKLOADS = {
    one.name: one
    for one in (
        *(BY_NAME[f"compiled_{name}"] for name in ("mlp_adam", "modules120_sgd", "gpt256_adam")),
        Compiled(
            "unet", f"U-Net of diffusion, {_STEP}", True, _unet, (4, 3, 32, 32), 10, adam=True
        ),
        Compiled(
            "gru_4", f"GRU of 2 layers, 4 long, {_STEP}", True, _gru, (8, 4, 32), 10, adam=True
        ),
        Compiled(
            "gru_16", f"GRU of 2 layers, 16 long, {_STEP}", True, _gru, (8, 16, 32), 10, adam=True
        ),
    )
}


def first_step(peer: str, name: str) -> float:
    """Return the seconds of the first two steps of this process."""
    machine.use_threads("torch", 1)
    import torch  # noqa: F401  # its import is not part of a step

    started = time.perf_counter()
    program = peers.make(peer, WORKLOADS[name])
    assert program is not None, f"{peer} has no {name}"
    for _ in range(2):
        program.run_once()
    return time.perf_counter() - started


def import_compilers() -> None:
    """Import what a first compiled step imports."""
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    import fastnet.network.torch.compiled.session  # noqa: F401


def parts_of_first_step(name: str) -> dict[str, float]:
    """Return the seconds of each part of fastnet's first two steps of this process."""
    machine.use_threads("torch", 1)
    import torch  # noqa: F401

    started = time.perf_counter()
    seconds = dict.fromkeys([*_PARTS, "the rest"], 0.0)
    within = ["the rest"]
    since = started

    def enter(part: str | None) -> None:
        nonlocal since
        now = time.perf_counter()
        seconds[within[-1]] += now - since
        since = now
        if part is None:
            within.pop()
        else:
            within.append(part)

    def timed(function: Any, part: str) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **settings: Any) -> Any:
            enter(part)
            try:
                return function(*args, **settings)
            finally:
                enter(None)

        return run

    timed(import_compilers, "imports")()
    for part, functions in _PARTS.items():
        for one in functions:
            module, _, path = one.partition(":")
            *owners, attribute = path.split(".")
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            setattr(owner, attribute, timed(getattr(owner, attribute), part))
    program = peers.make("fastnet", WORKLOADS[name])
    assert program is not None
    for _ in range(2):
        program.run_once()
    enter("the rest")
    return seconds


def second_step(name: str, verify: bool) -> list[float]:
    """Return the seconds of the first two steps of a model, of which the second may be verified."""
    machine.use_threads("torch", 1)
    import torch

    from bench.architectures import ARCHITECTURES
    from fastnet import CompileOptions
    from fastnet.network import TorchNetwork

    _, ops = ARCHITECTURES[name].build("Adam", 0)
    network = TorchNetwork(ops, compile=CompileOptions(verify="first" if verify else None))
    generator = torch.Generator().manual_seed(5)
    seconds = []
    with network("train", 1):
        for _ in range(2):
            batch = ARCHITECTURES[name].batch(generator)
            started = time.perf_counter()
            network.run_step(batch)
            seconds.append(time.perf_counter() - started)
    return seconds


def peak_memory(peer: str) -> int:
    """Return the bytes of the weights, both states of Adam, and a step of this process."""
    machine.use_threads("torch", 1)
    program = peers.make(peer, LARGE)
    assert program is not None
    for _ in range(4):
        program.run_once()
    gc.collect()
    before = _of_process("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    for _ in range(_STEPS):
        program.run_once()
    return _of_process("VmHWM") - before + 3 * sum(one.nbytes for one in program.model.parameters())


def _of_process(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(found.split()[1]) * 1024


def _call(function: str, *arguments: Any, cache: str) -> Any:
    # Large tensors return to the system as soon as they are freed.
    variables = {"TORCHINDUCTOR_CACHE_DIR": cache, "MALLOC_MMAP_THRESHOLD_": "65536"}
    result = processes.call(f"bench.first_steps:{function}", *arguments, variables=variables)
    print(f"{function} of {', '.join(map(str, arguments))}: {result}", file=sys.stderr)
    return result


def _judged(peer: str, ratio: float, goal: float) -> list[str]:
    verdict = "met" if ratio <= goal else "missed"
    return [f"{ratio:.2f}", *([f"{goal:g}", verdict] if peer == "fastnet" else ["", ""])]


def first_steps(rounds: int) -> str:
    """Return the table of first steps, the medians of some rounds."""
    usual = peers.title("compiled_update")
    rows = []
    for name, workload in WORKLOADS.items():
        seconds: dict[str, list[list[float]]] = {peer: [] for peer in PEERS}
        for _ in range(rounds):
            for peer in PEERS:
                with tempfile.TemporaryDirectory() as cache:
                    seconds[peer].append(
                        [_call("first_step", peer, name, cache=cache) for _ in "12"]
                    )
        medians = {
            peer: [statistics.median(one) for one in zip(*pairs, strict=True)]
            for peer, pairs in seconds.items()
        }
        for peer, times in medians.items():
            row = [workload.title, peers.title(peer)]
            for taken, reference, goal in zip(
                times, medians["compiled_update"], (COLD, WARM), strict=True
            ):
                row += [f"{taken:.1f}", *_judged(peer, taken / reference, goal)]
            rows.append(row)
    columns = ["work", "peer"]
    for kind in ("cold", "warm"):
        columns += [f"{kind}, s", f"ratio to {usual}", "goal", "verdict"]
    return markdown_table(columns, rows)


def parts() -> str:
    """Return the table of what fastnet's first steps are made of."""
    rows = []
    for name, workload in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm"):
                seconds = _call("parts_of_first_step", name, cache=cache)
                times = [f"{taken:.1f}" for taken in seconds.values()]
                rows.append([workload.title, kind, f"{sum(seconds.values()):.1f}", *times])
    return markdown_table(["work", "cache", "all, s", *_PARTS, "the rest"], rows)


def verification(rounds: int) -> str:
    """Return the table of steps with and without verification, the medians of some rounds."""
    rows = []
    for name in VERIFIED:
        with tempfile.TemporaryDirectory() as cache:
            _call("second_step", name, True, cache=cache)  # Fills the cache.
            seconds = {
                verify: [_call("second_step", name, verify, cache=cache) for _ in range(rounds)]
                for verify in (True, False)
            }
        (first, verified), (again, unverified) = (
            [statistics.median(one) for one in zip(*seconds[verify], strict=True)]
            for verify in (True, False)
        )
        ratio = (first + verified) / (again + unverified)
        rows.append([name, *(f"{one:.2f}" for one in (first, verified, again, unverified, ratio))])
    columns = ["model", "first step, s", "second, verified, s", "first, `verify=None`, s"]
    return markdown_table([*columns, "second, s", "ratio of both"], rows, left=1)


def memory() -> str:
    """Return the table of peak memory."""
    with tempfile.TemporaryDirectory() as cache:
        peaks = {peer: _call("peak_memory", peer, cache=cache) for peer in ("bare", *PEERS)}
    rows = [
        [peers.title(peer), f"{peak / 1e6:.0f}", *_judged(peer, peak / peaks["bare"], MEMORY)]
        for peer, peak in peaks.items()
    ]
    columns = ["peer", "MB", f"ratio to the {peers.title('bare')}", "goal", "verdict"]
    return markdown_table(columns, rows, left=1)


def page(rounds: int) -> tuple[str, None]:
    """Return the page of the measurements, the medians of some rounds."""
    text = f"""\
# First steps that compile, and memory

Measured on {machine.processor()}: {machine.version_note("torch")}.

## First steps

Seconds from making the program to the end of the second step, medians of {rounds}.

{first_steps(rounds)}

What fastnet's are made of, in seconds; a process of its own for each row. "The rest" has the eager
steps. The C++ compiler runs in other processes meanwhile: its column is the time of waiting for it.

{parts()}

## Verification

Seconds of the first step, which compiles, and of the second, in which the program is verified, with
Adam, in processes that find Inductor's programs on disk; medians of {rounds}.

{verification(rounds)}

## Peak memory

{LARGE.title}, batches of {LARGE.shape[0]}, Adam: weights, states and the peak of a step.

{memory()}
"""
    return text, None


if __name__ == "__main__":
    sys.exit(pages.run("first_steps", __doc__, page, rounds=(3, "processes of each kind")))
