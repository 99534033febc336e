"""Times float32 matrix products of MKL and of oneDNN: `python -m bench.products`.

The rules of `fastnet.network.torch.compiled.products` come from these tables. A call of its
operator takes some 2 us more than the times here.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import torch

from bench import machine, pages
from bench.program import Program
from bench.tables import markdown_table, microseconds, ratio
from bench.timing import interleave
from fastnet.backend.torch._internals import onednn_product
from fastnet.network.torch.compiled.products import find_rule, processor_fields

# Rows, length of the sums, columns.
SIZES = (
    *((1, 512, 512), (8, 512, 512), (32, 512, 512), (128, 512, 512), (512, 128, 512)),
    *((64, 64, 64), (128, 128, 128), (256, 64, 64), (256, 64, 256), (64, 256, 256)),
    *((128, 512, 10), (2048, 64, 64), (64, 2048, 64), (256, 256, 256), (512, 512, 512)),
    *((2048, 256, 256), (256, 2048, 256), (2048, 256, 768), (256, 2048, 768)),
    *((2048, 256, 1024), (2048, 1024, 256), (256, 2048, 1024), (1024, 2048, 256)),
    *((1024, 1024, 1024), (512, 2048, 2048)),
    *((2, 2048, 2048), (16, 512, 512), (32, 256, 256), (512, 512, 16), (4096, 512, 10)),
    *((512, 8, 512), (1024, 10, 2048)),
)
# Forward passes of a layer transpose its weights, and backward passes the gradient for them.
LAYOUTS = ("", "right", "left")
_ROUND_NS = 2e6


def times(
    rows: int, inner: int, columns: int, transposed: str, rounds: int
) -> tuple[float, float, bool | None]:
    """Return the shortest times of both libraries in nanoseconds, and what the rule chooses."""
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    if transposed == "left":
        left = left.t().contiguous().t()
    if transposed == "right":
        right = right.t().contiguous().t()
    programs = {
        "mkl": Program(lambda _: torch.mm(left, right)),
        "onednn": Program(lambda _: onednn_product(left, right)),
    }
    with torch.no_grad():
        timings = interleave(programs, rounds, _ROUND_NS)
    rule = find_rule()
    chosen = rule and rule.prefers_onednn(
        rows,
        inner,
        columns,
        is_contiguous=left.is_contiguous(),
        threads=torch.get_num_threads(),
    )
    return timings["mkl"].rounds.min(), timings["onednn"].rounds.min(), chosen


def page(rounds: int, threads: int) -> tuple[str, None]:
    """Return the page of the measurements."""
    torch.set_num_threads(threads)
    table: list[list[Any]] = []
    for size, transposed in product(SIZES, LAYOUTS):
        mkl, onednn, chosen = times(*size, transposed, rounds)
        name = "oneDNN" if chosen else "MKL"
        values = microseconds(mkl), microseconds(onednn), ratio(onednn / mkl)
        table.append([*size, transposed or "-", *values, name])
    columns = ["rows", "inner", "columns", "transposed operand", "MKL, us", "oneDNN, us", "ratio"]
    fields = processor_fields()
    family = ", ".join(
        f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields
    )
    text = f"""\
# Matrix products of MKL and of oneDNN

Measured on {machine.processor()} ({family}), threads: {threads}; the
shortest of {rounds} interleaved rounds of 2 ms. The last column is the choice of the operator
`fastnet::mm` on this processor. {machine.version_note("torch")}.

{markdown_table([*columns, "operator"], table, left=0)}
"""
    return text, None


if __name__ == "__main__":
    options = {"rounds": (41, "of each product"), "threads": (1, "of both libraries")}
    sys.exit(pages.run("products", __doc__, page, **options))
