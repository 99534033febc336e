"""Float32 matrix products on the CPU, by MKL or by oneDNN, whichever is faster.

PyTorch calls MKL, which on some processors of AMD takes twice the time of oneDNN. The operator
`fastnet::mm` chooses in each call, by a rule that was measured with `python -m bench.products`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fastnet.backend.torch._internals import has_onednn_product, onednn_product

mkl_product = torch.mm


class Rule(NamedTuple):
    """The matrix products for which oneDNN is faster than MKL.

    Attributes:
        min_length: The minimum of the number of rows, of columns, and of products in each sum.
        min_work: The minimum number of multiplications for each thread.
        min_columns_after_copy: The minimum number of columns if the left operand is not contiguous,
            and has to be copied for oneDNN. The copy costs as much as some columns.
    """

    min_length: int
    min_work: int
    min_columns_after_copy: int

    def prefers_onednn(
        self, rows: int, inner: int, columns: int, *, is_contiguous: bool = True, threads: int = 1
    ) -> bool:
        """Return whether oneDNN is faster for (rows, inner) by (inner, columns)."""
        return (
            min(rows, inner, columns) >= self.min_length
            and rows * inner * columns >= self.min_work * threads
            and (is_contiguous or columns >= self.min_columns_after_copy)
        )


# By vendor and family of processors with AVX-512. MKL is used on all others.
_RULES = {
    # Zen 5, measured in bench/results/products_zen5.md: from 2 million multiplications on, oneDNN
    # takes 0.2 to 0.9 of MKL's time; below, it depends on the shape. With one row or two MKL is
    # faster.
    ("AuthenticAMD", "26"): Rule(8, 2_000_000, 8),
    # Zen 4, measured in bench/results/products_zen4.md: oneDNN takes 0.81 to 0.95 of MKL's time.
    # With less than 100 million multiplications the gain is lost in a whole step.
    ("AuthenticAMD", "25"): Rule(64, 100_000_000, 2048),
}

_CPU_INFO = Path("/proc/cpuinfo")
_onednn: Any = torch.backends.mkldnn


@cache
def find_rule() -> Rule | None:
    """Return the rule of this processor, or None if it always uses MKL."""
    processor = processor_fields()
    if not has_onednn_product() or "avx512f" not in processor.get("flags", "").split():
        return None
    return _RULES.get((processor.get("vendor_id", ""), processor.get("cpu family", "")))


def processor_fields() -> dict[str, str]:
    """Return the fields of the last core in Linux's list; an empty dict on other systems."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in fields}


def may_use_onednn(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether the operator would use oneDNN for a product, or for some open sizes of it."""
    rule = find_rule()
    if rule is None or not _onednn.enabled:
        return False
    if left.dtype != torch.float32 or left.device.type != "cpu":
        return False
    # Comparing an open size would restrict the program to sizes with the same answer.
    sizes = (
        size if isinstance(size, int) else rule.min_work for size in (*left.shape, right.shape[1])
    )
    return rule.prefers_onednn(*sizes)


# A kernel of a library adds 2 us to a call, and one of `torch.library.custom_op` 9 us.
_library: Any = torch.library.Library("fastnet", "DEF")  # type: ignore[no-untyped-call]
_library.define("mm(Tensor self, Tensor mat2) -> Tensor", tags=(torch.Tag.flexible_layout,))


@torch.library.impl(_library, "mm", "CPU")
def _mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    rule = find_rule()
    rows, inner = left.shape
    columns = right.shape[1]
    if (
        rule is not None
        and rule.prefers_onednn(
            rows,
            inner,
            columns,
            is_contiguous=left.is_contiguous(),
            threads=torch.get_num_threads(),
        )
        and _is_matrix(right, inner, columns)
        and _onednn.enabled
    ):
        return onednn_product(left, right)
    return mkl_product(left, right)


def _is_matrix(tensor: torch.Tensor, rows: int, columns: int) -> bool:
    """Return whether rows or columns are contiguous and do not overlap, as oneDNN requires."""
    between_rows, between_columns = tensor.stride()
    if between_columns == 1:
        return between_rows >= columns
    return between_rows == 1 and between_columns >= rows


@torch.library.register_fake("fastnet::mm", lib=_library)  # type: ignore[untyped-decorator]
def _mm_of_fake_tensors(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.new_empty((left.shape[0], right.shape[1]))


mm: Any = torch.ops.fastnet.mm.default
"""The operator. Its result is contiguous."""
