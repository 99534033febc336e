"""Matrix products of compiled steps, by MKL or by oneDNN."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastnet.network.torch.compiled import lowering, products
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    Pair,
    batches,
    built,
    captured,
    network_of,
)
from tests.network.torch.compiled.test_inductor import by_inductor

RULE = products.Rule(min_length=3, min_work=60_000, min_columns_after_copy=50)

pytestmark = pytest.mark.skipif(
    not products.has_onednn_product(), reason="this build of torch has no oneDNN"
)


def _wide() -> nn.Module:
    """Return a model whose products have more than 16,384 multiplications in batches of 18."""
    hidden = (nn.Linear(6, 160), nn.ReLU(), nn.Linear(160, 160, bias=False), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 3))


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Use a rule on this processor, and list for each call of the operator if it used oneDNN."""
    calls: list[bool] = []

    def spy(multiply: Callable[..., torch.Tensor], is_onednn: bool) -> Callable[..., torch.Tensor]:
        def call(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            calls.append(is_onednn)
            return multiply(one, other)

        return call

    monkeypatch.setattr(products, "find_rule", lambda: RULE)
    monkeypatch.setattr(products, "onednn_product", spy(products.onednn_product, True))
    # Not `torch.mm`: Inductor would keep the spy, if it is imported meanwhile.
    monkeypatch.setattr(products, "mkl_product", spy(products.mkl_product, False))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield calls
    torch.set_num_threads(threads)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """List the graphs that Inductor would compile, and run them instead."""
    found: list[Any] = []

    def run(graph: Any, *_: Any) -> Callable[[list[torch.Tensor]], Any]:
        found.append(graph)
        return lambda tensors: graph(*tensors)

    monkeypatch.setattr(lowering, "compile_graph", run)
    return found


def _count(graph: Any) -> int:
    return sum(node.target is products.mm for node in graph.graph.nodes)


def _operands(rows: int, inner: int, columns: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    left, right = random(rows, inner), random(inner, columns)
    return {
        "contiguous": (left, right),
        "left transposed": (random(inner, rows).t(), right),
        "right transposed": (left, random(columns, inner).t()),
        "both transposed": (random(inner, rows).t(), random(columns, inner).t()),
        "parts of rows": (random(rows, inner + 3)[:, 1:-2], random(inner, columns + 3)[:, 1:-2]),
        "every other element": (
            random(rows, 2 * inner)[:, ::2],
            random(inner, 2 * columns)[:, ::2],
        ),
        "expanded": (random(1, inner).expand(rows, -1), random(1, columns).expand(inner, -1)),
        "expanded columns": (left, random(inner, 1).expand(-1, columns)),
        "overlapping": (left, random(3 * inner + columns).as_strided((inner, columns), (3, 1))),
    }


@pytest.mark.parametrize("layout", list(_operands(1, 1, 1)))
@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [
        *((40, 50, 60), (20, 30, 100), (19, 30, 100), (600, 3, 40), (3, 400, 50), (3, 450, 49)),
        *((1, 300, 300), (300, 1, 300), (300, 300, 1)),
        *((0, 300, 300), (300, 0, 300), (300, 300, 0)),
    ],
)
def test_operator_multiplies(
    forced: list[bool], layout: str, rows: int, inner: int, columns: int
) -> None:
    left, right = _operands(rows, inner, columns)[layout]
    result = products.mm(left, right)
    expected = (left.double() @ right.double()).float()
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5 * max(inner, 1) ** 0.5)
    assert result.is_contiguous()
    torch.testing.assert_close(products.mm(left, right), result, rtol=0, atol=0)
    is_chosen = (
        min(rows, inner, columns) >= 3
        and rows * inner * columns >= 60_000
        and (columns >= 50 or left.is_contiguous())
        and layout not in ("every other element", "expanded", "expanded columns", "overlapping")
    )
    assert forced == [is_chosen] * 2


def test_threads_and_disabled_onednn_in_each_call(
    forced: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = torch.randn(40, 50), torch.randn(50, 50)
    products.mm(left, right)
    torch.set_num_threads(2)
    products.mm(left, right)
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    products.mm(left, right)
    assert forced == [True, False, False]


def test_fake_results_are_like_real_ones(forced: list[bool]) -> None:
    for left, right in _operands(40, 50, 60).values():
        torch.library.opcheck(
            products.mm, (left, right), test_utils=("test_schema", "test_faketensor")
        )
    assert True in forced


@pytest.mark.parametrize(
    ("family", "size", "threads", "is_contiguous", "expected"),
    [
        (26, (128, 512, 512), 1, True, True),
        (26, (512, 128, 512), 1, False, True),
        (26, (256, 64, 256), 1, True, True),
        (26, (256, 64, 256), 8, True, False),
        (26, (256, 256, 64), 1, False, True),
        (26, (4096, 512, 10), 1, True, True),
        (26, (32, 256, 256), 1, True, True),
        (26, (128, 512, 10), 1, True, False),
        (26, (1, 512, 512), 1, True, False),
        (26, (1, 8192, 8192), 1, True, False),
        (26, (64, 64, 64), 1, True, False),
        (25, (2048, 256, 1024), 1, True, True),
        (25, (256, 2048, 256), 1, False, False),
        (25, (256, 64, 256), 1, True, False),
    ],
)
def test_rules_of_amd(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    family: int,
    size: tuple[int, int, int],
    threads: int,
    is_contiguous: bool,
    expected: bool,
) -> None:
    rule = _rule_for(monkeypatch, tmp_path, "AuthenticAMD", family)
    assert rule is not None
    chosen = rule.prefers_onednn(*size, is_contiguous=is_contiguous, threads=threads)
    assert chosen is expected


def _rule_for(
    monkeypatch: pytest.MonkeyPatch, folder: Path, vendor: str, family: int, flags: str = "avx512f"
) -> products.Rule | None:
    """Return the rule of a processor, by the lines that Linux has for its cores."""
    core = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: fpu avx2 {flags} fma\n\n"
    (folder / "cpuinfo").write_text(f"processor\t: 0\n{core}processor\t: 1\n{core}")
    monkeypatch.setattr(products, "_CPU_INFO", folder / "cpuinfo")
    return products.find_rule.__wrapped__()  # without its cache


def test_processors_without_a_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _rule_for(monkeypatch, tmp_path, "GenuineIntel", 6) is None
    assert _rule_for(monkeypatch, tmp_path, "AuthenticAMD", 23) is None
    assert _rule_for(monkeypatch, tmp_path, "AuthenticAMD", 25, flags="") is None  # Zen 3
    monkeypatch.setattr(products, "_CPU_INFO", tmp_path / "missing")
    assert products.find_rule.__wrapped__() is None


@pytest.mark.parametrize("dynamic", [None, True])
def test_steps_equal_those_of_a_loop(
    forced: list[bool], graphs: list[Any], dynamic: bool | None
) -> None:
    pair = Pair(_wide, OPTIMIZERS["momentum"], True, dynamic)
    with pair.network("train", 1):
        for place, size in enumerate((40, 40, 40, 30, 2, 3, 1, 1, 64, 63)):
            pair.step(batches(1, size, seed=place)[0])
    pair.assert_same_weights()
    captured(pair.network)
    # A batch of one has a program without large products.
    assert [_count(graph) > 0 for graph in graphs] == (
        [True, False] if dynamic else [True, True, False]
    )
    assert {True, False} == set(forced)


@pytest.mark.parametrize("reason", [None, "processor", "disabled", "float64", "bfloat16"])
def test_what_is_replaced(
    forced: list[bool], graphs: list[Any], monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    if reason == "processor":
        monkeypatch.setattr(products, "find_rule", lambda: None)
    if reason == "disabled":
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model = built(_wide)
    (batch,) = batches(1, 64)
    if reason == "float64":
        model.double()
        batch["x"] = batch["x"].double()
    network = network_of(model, True)
    with (
        torch.autocast("cpu", enabled=reason == "bfloat16"),
        network("train", 1),
    ):
        for _ in range(3):
            network.run_step(batch)
    assert captured(network) == 1
    (graph,) = graphs
    # Products of 160 by 160 forward, and of both operands backward, and the first weights.
    assert _count(graph) == (0 if reason else 8)


_IN_A_PROCESS = """
import torch
from torch._dynamo.utils import counters
from fastnet.network.torch.compiled import products
from tests.network.torch.compiled.steps import OPTIMIZERS, Pair, batches, captured
from tests.network.torch.compiled.test_products import RULE, _wide

torch.set_num_threads(1)
products.find_rule = lambda: RULE
pair = Pair(_wide, OPTIMIZERS["adam"], True)
with pair.network("train", 1):
    for place, size in enumerate((40, 40, 40, 7, 64)):
        pair.step(batches(1, size, seed=place)[0])
pair.assert_same_weights()
print(captured(pair.network), counters["inductor"]["fxgraph_cache_hit"])
print(hash(tuple(float(weight.sum()) for weight in pair.model.parameters())))
"""


@by_inductor
@pytest.mark.slow
def test_second_process_computes_the_same_with_programs_on_disk(tmp_path: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _IN_A_PROCESS],
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    (first_count, weights), (second_count, same_weights) = outputs
    assert (first_count, second_count) == ("2 0", "2 2")
    assert weights == same_weights
