"""Times training steps on a GPU: `python -m bench.gpu`.

Each workload's batch is on the GPU, and every program trains its own copy of the model there. A
round is a number of steps, and ends when the GPU has done them; rounds of the programs alternate.
The baseline is the hand-written PyTorch loop, which never waits for the GPU inside a round, and
neither do the others but for `fastnet, results on the CPU` (the default), which waits in each step.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

import fastnet
from bench.peers.loops import train_loop
from bench.timing import Spread
from bench.workloads import compiled
from bench.workloads.torch_models import Supervised
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

Step = Callable[[], Any]

_BASELINE = "hand-written loop"
WORKLOADS = (
    "compiled_mlp_adam",
    "compiled_modules120_adam",
    "compiled_lenet_train",
    "compiled_gpt_adam",
    "compiled_mlp512_adam",
)


def _by_hand(
    workload: Supervised, batch: Any, wrap: Any = None, update: Any = None, fused: bool = False
) -> Step:
    model = workload.model().cuda()
    optimizer = workload.optimizer(model.parameters(), fused=fused)
    step = update and update(optimizer.step)
    return partial(train_loop(wrap(model) if wrap else model, optimizer, update=step), batch)


def _by_fastnet(workload: Supervised, batch: Any, **options: Any) -> Step:
    model = fastnet.build(workload.model, workload.optimizer)
    network = fastnet.Network(
        [
            ModelOp(model, inputs="x", outputs="pred"),
            CrossEntropy(inputs=("pred", "y"), outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),
        ],
        **options,
    )
    network("train", 1).__enter__()
    return partial(network.run_step, batch)


def _programs(compiles: bool) -> dict[str, Callable[[Supervised, Any], Step]]:
    """Return what makes each program's step; the first is the baseline."""
    found: dict[str, Callable[[Supervised, Any], Step]] = {
        _BASELINE: _by_hand,
        "hand-written loop, fused=True": partial(_by_hand, fused=True),
        "fastnet": partial(_by_fastnet, returns="device"),
        "fastnet, results on the CPU": _by_fastnet,
    }
    if compiles:
        reduce_overhead = partial(torch.compile, mode="reduce-overhead")
        found |= {
            "torch.compile(model)": partial(_by_hand, wrap=torch.compile),
            "torch.compile, model and optimizer": partial(
                _by_hand, wrap=torch.compile, update=torch.compile
            ),
            "torch.compile, reduce-overhead": partial(_by_hand, wrap=reduce_overhead),
            "fastnet, compile=True": partial(_by_fastnet, returns="device", compile=True),
        }
    return found


def _round(step: Step, steps: int) -> float:
    """Return the seconds that each of `steps` takes."""
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (perf_counter() - start) / steps


def measure(workload: Supervised, rounds: int, compiles: bool) -> str:
    """Return rows of a table: microseconds a step, and ratios to the baseline."""
    batch = {key: value.cuda() for key, value in workload.batch().items()}
    steps: dict[str, Step] = {}
    losses: dict[str, list[float]] = {}
    for name, make in _programs(compiles).items():
        try:
            step = make(workload, batch)
            losses[name] = [float(step()["loss"]) for _ in range(10)]
        except Exception as error:
            warnings.warn(f"{name} failed: {error!r}", stacklevel=2)
            continue
        steps[name] = step
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses[_BASELINE], rtol=1e-2, atol=1e-3, err_msg=name)
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    # A round takes some 30 ms, so that the wait at its end is a small part of it.
    counts = {name: min(200, max(5, int(0.03 / _round(steps[name], 10)))) for name in names}
    for place in range(rounds):
        for name in names[place % len(names) :] + names[: place % len(names)]:
            times[name].append(_round(steps[name], counts[name]))
    lines = []
    for name, seconds in times.items():
        ratio = Spread.of(np.divide(seconds, times[_BASELINE]))
        between = f"{ratio.low:.2f} to {ratio.high:.2f}"
        row = (workload.title, name, f"{np.median(seconds) * 1e6:.0f}", f"{ratio.median:.2f}")
        lines.append(f"| {' | '.join(row)} | {between} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--eager", action="store_true", help="leave compilers out")
    options = parser.parse_args()
    known = {each.name: each for each in compiled.WORKLOADS}
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, ", end="")
    print(f"{torch.get_num_threads()} CPU threads\n")
    print(f"| workload | program | µs a step | ratio to the {_BASELINE} | quartiles |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.workloads:
        print(measure(known[name], options.rounds, not options.eager), flush=True)


if __name__ == "__main__":
    main()
