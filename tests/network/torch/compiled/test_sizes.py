"""Batches of other sizes: what is compiled for one size, for any, or for each by itself."""

from __future__ import annotations

import ast
import copy
import math
import random
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fastnet import CompileOptions
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import UpdateOp
from tests.network.torch.compiled.steps import (
    OPTIMIZERS,
    QUICK,
    Pair,
    assert_same_weights,
    batches,
    built,
    captured,
    mlp,
    network_of,
    run_both,
)
from tests.network.torch.compiled.test_inductor import by_inductor

SIZE, KIND = "a batch has another size", "a batch has another input signature"


def _train(
    sizes: list[list[int]],
    compile: Any = QUICK,
    make: Callable[[], nn.Module] = mlp,
    dynamic: Any = None,
) -> TorchNetwork:
    """Train beside a hand-written loop with batches of some sizes in each epoch."""
    pair = Pair(make, OPTIMIZERS["adam"], compile, dynamic)
    for epoch, own in enumerate(sizes, 1):
        with pair.network("train", epoch):
            for place, size in enumerate(own):
                pair.step(batches(1, size, seed=31 * epoch + place)[0])
    pair.assert_same_weights()
    return pair.network


def _reasons(network: TorchNetwork) -> list[str]:
    """Return the reasons for programs, without what differs between two batches."""
    captured(network)
    return [re.sub(f"^({KIND}): [^;]*", r"\1", one.reason) for one in network.traces]


def test_a_last_batch_that_is_smaller_compiles_once_more() -> None:
    assert _reasons(_train([[8, 8, 8, 5]] * 3)) == ["first step", SIZE]


@pytest.mark.parametrize("dynamic", [None, True])
def test_batches_of_any_size(dynamic: bool | None) -> None:
    draw = random.Random(0)
    sizes = [[draw.randint(2, 70) for _ in range(12)] for _ in range(2)]
    network = _train(sizes, dynamic=dynamic)
    assert _reasons(network) == (["first step"] if dynamic else ["first step", SIZE])


def test_each_size_by_itself_where_that_is_asked_for() -> None:
    network = _train([[8, 5, 3, 8, 5, 3]] * 3, dynamic=False)
    assert _reasons(network) == ["first step", KIND, KIND]


def _without_norm() -> nn.Module:
    # a single row has no variance
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def test_a_batch_of_one_row() -> None:
    assert _reasons(_train([[8, 5, 1, 1, 3, 8]] * 2, make=_without_norm)) == [
        "first step", SIZE, KIND
    ]  # fmt: skip
    assert _reasons(_train([[1, 1, 7, 1, 4, 7]] * 2, make=_without_norm)) == ["first step", SIZE]
    network = _train([[1, 6, 1, 4]], make=_without_norm, dynamic=True)
    assert _reasons(network) == ["first step", SIZE]


def test_merged_gradients_of_batches_of_any_size() -> None:
    def make(compile: Any) -> TorchNetwork:
        model = built(optimizer=OPTIMIZERS["momentum"])
        *ops, _ = network_of(model).ops
        return TorchNetwork([*ops, UpdateOp(model, "loss", merge_grad=2)], compile=compile)

    sizes = (8, 8, 8, 5, 3, 6) * 2
    data = [batches(1, size, seed=place)[0] for place, size in enumerate(sizes)]
    # of each phase one program for a size, and one for any
    assert captured(run_both(make, data)) <= 4


def test_rows_as_many_as_something_else_that_stays() -> None:
    # batches of six rows of six, and of eight, as many as a layer has
    assert _reasons(_train([[6, 8, 3, 6, 8, 12]] * 2)) == ["first step", SIZE]


def _run(fn: Callable[..., Any], batches: list[dict[str, Any]], compile: Any = QUICK) -> Any:
    """Run an op of its own, captured and eagerly."""
    network = TorchNetwork([LambdaOp(fn, "x", "y")], compile=compile)
    with network("infer", 1):
        for batch in batches:
            result, expected = network.run_step(batch)["y"], fn(batch["x"])
            assert type(result) is type(expected)
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(result, expected)
            else:
                assert result == expected
    return network


def _rows(*sizes: int) -> list[dict[str, Any]]:
    return [{"x": torch.randn(size, 3)} for size in sizes]


MANY = (9, 9, 4, 2, 5, 11, 3)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum() / x.shape[0] ** 0.5,
        lambda x: x * torch.arange(x.shape[0]).unsqueeze(1),
        lambda x: x.reshape(x.shape[0] * 3),
        lambda x: x.reshape(x.shape[0], int(np.prod(x.shape[1:]))) / math.sqrt(x.shape[1]),
        lambda x: x[:, [1, 0]] + x[:, 1:3],
        lambda x: x[-1:],
        lambda x: x.flip(0)[: x.shape[0] * 2],
        lambda x: torch.cat([x, x * 2]),
        lambda x: x @ x.T,
        lambda x: x.new_zeros(x.shape),
        lambda x: functional.pad(x, (0, 0, 0, 2)),
        lambda x: torch.full((x.size(0),), 1.0 / x.numel()),
    ],
)
def test_arithmetic_with_the_size(fn: Callable[..., Any]) -> None:
    assert _reasons(_run(fn, _rows(*MANY))) == ["first step", SIZE]


def test_conditions_on_the_size_are_compared() -> None:
    network = _run(lambda x: x * 2 if x.shape[0] > 4 else x - 1, _rows(*MANY))
    assert _reasons(network) == ["first step", SIZE, SIZE]
    network = _run(lambda x: x.view(-1, 2) if x.shape[0] % 2 == 0 else x, _rows(*MANY))
    assert _reasons(network) == ["first step", SIZE, SIZE]


def test_a_size_that_is_a_case_of_its_own() -> None:
    # of two rows there is one left, which is broadcast where several are not
    network = _run(lambda x: x[1:] + torch.ones(x.shape[0] - 1, 1), _rows(*MANY))
    assert _reasons(network) == ["first step", SIZE, KIND]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * len(str(x.shape[0])),
        lambda x: x * 2 if isinstance(x.shape[0], int) else x,
    ],
)
def test_what_treats_an_open_size_otherwise_is_found_by_the_verification(fn: Any) -> None:
    first, second, *others = _reasons(_run(fn, _rows(*MANY)))
    assert (first, second) == ("first step", SIZE)
    assert others
    assert all("each size is compiled by itself, because a step" in one for one in others)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: x * 2 if len(x) > 4 else x - 1, "depends on this length"),
        (lambda x: sum(x[i] for i in range(x.shape[0])), "depends on this length"),
        (lambda x: x * int(x.shape[0]), "depends on this length"),
        (lambda x: x.shape[0], "which is, or holds, a value of type SymInt"),
    ],
)
def test_what_has_each_size_compiled_by_itself(fn: Callable[..., Any], why: str) -> None:
    network = _run(fn, _rows(*MANY))
    first, second, *others = _reasons(network)
    assert first == "first step"
    assert second.startswith(f"{KIND}; each size is compiled by itself, because ")
    assert why in second
    assert all(one == second for one in others)


def test_sizes_that_are_not_those_of_all_tensors() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() * y

    network = TorchNetwork([LambdaOp(fn, ["x", "y"], "z")], compile=QUICK)
    with network("infer", 1):
        for first, second in ((4, 7), (4, 7), (6, 7), (5, 7), (5, 9), (8, 9), (6, 8), (6, 7)):
            batch = {"x": torch.randn(first, 2), "y": torch.randn(second)}
            result = network.run_step(batch)["z"]
            torch.testing.assert_close(result, fn(batch["x"], batch["y"]))
    # x has other rows; then y; then both, each another number: a kind of its own
    assert _reasons(network)[:2] == ["first step", SIZE]


def test_rows_that_do_not_go_together_are_no_kind_of_their_own() -> None:
    model = built(_without_norm)
    network = network_of(model)
    with network("train", 1):
        for size in (8, 8, 5, 5, 4, 4):
            network.run_step(batches(1, size)[0])
        assert _reasons(network) == ["first step", SIZE]
        bad = {"x": torch.randn(4, 6), "y": torch.zeros(3, dtype=torch.int64)}
        with pytest.raises(ValueError) as by_hand:  # noqa: PT011  # The text is torch's.
            functional.cross_entropy(model(bad["x"]), bad["y"])
        with pytest.raises(ValueError, match=re.escape(str(by_hand.value))):
            network.run_step(bad)
        network.run_step(batches(1, 7)[0])
    assert _reasons(network) == ["first step", SIZE]


def test_rows_in_other_strides_and_pieces_of_larger_tensors() -> None:
    every = torch.randn(40, 3)
    pieces = [{"x": every[at : at + size]} for at, size in ((0, 9), (3, 9), (5, 4), (9, 7), (1, 6))]
    assert _reasons(_run(lambda x: x * 2 + 1, pieces)) == ["first step", SIZE]
    columns = [{"x": torch.randn(3, size).T} for size in (9, 9, 4, 4, 9)]
    assert _reasons(_run(lambda x: x * 2, columns)) == ["first step", KIND]


def test_threads_with_batches_of_their_own_sizes() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.unsqueeze(1) + x.shape[0]

    network = TorchNetwork([LambdaOp(fn, ["x", "y"], "z")], compile=QUICK)

    def run(size: int) -> bool:
        batch = {"x": torch.randn(size, 3), "y": torch.randn(size)}
        expected = fn(batch["x"], batch["y"])
        return all(torch.equal(network.run_step(batch)["z"], expected) for _ in range(100))

    with network("infer", 1), ThreadPoolExecutor(4) as pool:
        assert all(map(run, (9, 5)))
        assert all(pool.map(run, (2, 3, 4, 9, 6, 7)))
    # threads may find at once that there is no program yet, and make more than are needed
    assert network.traces[0].reason == "first step"


def test_a_constant_beside_another_size_is_another_kind() -> None:
    def fn(x: torch.Tensor, how: str) -> torch.Tensor:
        return x * 2 if how == "twice" else x

    network = TorchNetwork([LambdaOp(fn, ["x", "how"], "y")], compile=QUICK)
    with network("infer", 1):
        for size, how in ((5, "twice"), (5, "twice"), (4, "once"), (4, "once"), (3, "once")):
            x = torch.randn(size, 2)
            assert torch.equal(network.run_step({"x": x, "how": how})["y"], fn(x, how))
    assert _reasons(network) == ["first step", KIND, SIZE]


@by_inductor
@pytest.mark.slow
def test_inductor_for_batches_of_any_size() -> None:
    draw = random.Random(1)
    sizes = [[8, 8, 5], *[[draw.randint(2, 70) for _ in range(40)] for _ in range(3)]]
    assert _reasons(_train(sizes, True)) == ["first step", SIZE]


@by_inductor
@pytest.mark.slow
def test_inductor_for_images_of_any_number() -> None:
    def net() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 6)),
            nn.Conv1d(1, 4, 3, bias=False),
            nn.BatchNorm1d(4),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Dropout(0.0),
            nn.Linear(8, 3),
        )

    # torch has other convolutions from sixteen rows on
    assert _reasons(_train([[8, 8, 5], [7, 3, 12, 8, 5, 2]], True, net)) == ["first step", SIZE]
    reasons = _reasons(_train([[8, 8, 5], [21, 3, 16, 8, 5, 2, 40]], True, net))
    assert reasons in (["first step", SIZE], ["first step", SIZE, SIZE])


@by_inductor
@pytest.mark.slow
def test_conditions_that_inductor_finds_on_disk_are_compared() -> None:
    for sizes in ((9, 9, 8, 8, 6), (3, 3, 2, 2, 6, 9), (9, 9, 8, 8, 3, 2)):
        _run(lambda x: x.sum(0) * 2 if x.shape[0] > 4 else x - 1, _rows(*sizes), True)


def test_reason_names_the_key_and_what_differs() -> None:
    def fn(x: torch.Tensor, how: Any) -> torch.Tensor:
        return x * 2 if how == "twice" else x

    plain, x = [], torch.ones(4, 3)
    network = TorchNetwork([LambdaOp(fn, ["x", "how"], "y")], compile=QUICK)
    batches = [(x, "twice"), (x[:, :2].clone(), "twice"), (x[:, :2].double(), "twice"), (x, "once")]
    with network("infer", 1), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value, how in batches:
            for _ in range(2):
                assert torch.equal(network.run_step({"x": value, "how": how})["y"], fn(value, how))
            plain.append(len(caught))
    assert [one.reason for one in network.traces] == [
        "first step",
        f"{KIND}: 'x' has the shape (4, 2), not (4, 3)",
        f"{KIND}: 'x' has dtype torch.float64, not torch.float32",
        f"{KIND}: 'how' is, or holds, 'once'",
    ]
    # At the third program, once.
    assert plain == [0, 0, 1, 1]
    assert "for each of 3 kinds of batches" in str(caught[0].message)
    assert "'x' has dtype torch.float64" in str(caught[0].message)


def test_reason_names_a_value_that_differs_and_the_limit_too() -> None:
    network = TorchNetwork(
        [LambdaOp(lambda x, how: x if how == "once" else x * 2, ["x", "how"], "y")],
        compile=CompileOptions(backend="eager", max_programs=2),
    )
    with network("infer", 1):
        for how in ("once", "once", "twice", "twice", "often", "often"):
            network.run_step({"x": torch.ones(2), "how": how})
    reasons = [one.fallback or one.reason for one in network.traces]
    assert reasons[1] == f"{KIND}: 'how' is, or holds, 'twice'"
    assert reasons[2] == (
        "there are more than 2 input signatures, most recently because "
        f"{KIND}: 'how' is, or holds, 'often'"
    )


class TestLengths:
    """Axes other than the first, whose lengths vary by `dynamic`."""

    @staticmethod
    def run(
        fn: Callable[..., Any], shapes: list[tuple[tuple[int, ...], ...]], dynamic: Any
    ) -> list[str]:
        """Run an op compiled, with tensors of some shapes, beside the function itself."""
        keys = ["x", "y", "z"][: len(shapes[0])]
        network = TorchNetwork([LambdaOp(fn, keys, "out")], dynamic=dynamic, compile=QUICK)
        with network("infer", 1):
            for own in shapes:
                tensors = [torch.randn(shape) for shape in own]
                result = network.run_step(dict(zip(keys, tensors, strict=True)))["out"]
                torch.testing.assert_close(result, fn(*tensors))
        return _reasons(network)

    def test_tokens_of_any_length_take_one_program(self) -> None:
        shapes = [((size, length, 2),) for size in (3, 5, 2) for length in (4, 9, 2, 7)]
        dynamic = {"x": (0, 1)}
        assert self.run(lambda x: x.softmax(1).mean((0, 1)), shapes, dynamic) == ["first step"]
        assert self.run(lambda x: x.softmax(1), shapes, {"x": (0, -2)}) == ["first step"]
        # As without `dynamic`: any size, of each length.
        reasons = self.run(lambda x: x.softmax(1), shapes, None)
        assert reasons == ["first step", *[KIND] * 3, *[SIZE] * 4]

    def test_key_that_is_not_named_opens_its_batch_size(self) -> None:
        shapes = [((4, 3), (4,)), ((4, 5), (4,)), ((6, 5), (6,)), ((4, 2), (4,)), ((7, 2), (7,))]

        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(1) * y

        # The size of x is fixed, and so is that of y.
        assert self.run(fn, shapes, {"x": 1}) == ["first step", KIND, KIND]
        # With that of x, if it is equal.
        assert self.run(fn, shapes, {"x": (0, 1)}) == ["first step"]
        # When a second size comes.
        shapes = [((4, 3), (4,)), ((4, 5), (6,)), ((4, 2), (7,))]
        assert self.run(lambda x, y: x.sum() * y, shapes, {"x": 1}) == ["first step", SIZE]

    def test_equal_axes_are_one_until_a_batch_differs(self) -> None:
        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(1, keepdim=True) + y.cumsum(1)

        same, other = ((3, 4), (3, 4)), ((3, 5), (3, 7))
        shapes = [same, ((3, 9), (3, 9)), other, ((2, 6), (2, 6)), ((4, 8), (4, 2)), same]
        assert self.run(fn, shapes, {"x": (0, 1), "y": (0, 1)}) == [
            "first step",
            f"{SIZE}: axis 1 of 'x' and axis 1 of 'y' were equal before",
        ]

    def test_equal_axes_of_one_tensor_are_two(self) -> None:
        shapes = [((4, 4),), ((4, 6),), ((7, 2),), ((5, 5),)]
        reasons = self.run(lambda x: x - x.mean(1, keepdim=True), shapes, {"x": (0, 1)})
        assert reasons == ["first step"]

    def test_ops_that_need_equal_axes_have_them_compared(self) -> None:
        shapes = [((4, 4),), ((7, 7),), ((3, 3),)]
        reasons = self.run(lambda x: x + x.T, shapes, {"x": (0, 1)})
        assert reasons == ["first step"]

    def test_masks_of_any_length(self) -> None:
        def attend(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            scores = x @ x.transpose(1, 2) + mask
            causal = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
            return scores.masked_fill(causal, -10).softmax(-1) @ x

        shapes = [
            ((size, length, 3), (size, length, length))
            for size, length in ((2, 4), (4, 4), (3, 7), (7, 3), (5, 2))
        ]
        assert self.run(attend, shapes, {"x": (0, 1), "y": (0, 1, 2)}) == ["first step"]

    def test_graphs_of_any_number_of_nodes_and_edges(self) -> None:
        def pass_messages(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            source, target = edges.long().abs() % x.shape[0]
            return x.index_add(0, target, x[source])

        shapes = [((n, 3), (2, m)) for n, m in ((5, 8), (4, 9), (8, 8), (3, 3), (12, 2), (6, 7))]
        reasons = self.run(pass_messages, shapes, {"x": 0, "y": 1})
        assert reasons == ["first step"]
        # Nodes and edges that are equal in the first batch are one until another comes.
        reasons = self.run(pass_messages, [((6, 3), (2, 6)), *shapes], {"x": 0, "y": 1})
        equal = "axis 0 of 'x' and axis 1 of 'y' were equal before"
        assert reasons == ["first step", f"{SIZE}: {equal}"]

    def test_length_of_one_has_a_program_of_its_own(self) -> None:
        shapes = [((3, 4),), ((3, 1),), ((5, 1),), ((3, 9),), ((1, 5),), ((1, 7),), ((1, 1),)]
        reasons = self.run(lambda x: x / x.norm(dim=1, keepdim=True), shapes, {"x": (0, 1)})
        assert reasons == ["first step", KIND, KIND, KIND]

    def test_axis_that_must_be_known_leaves_the_others_open(self) -> None:
        def fn(x: torch.Tensor) -> Any:
            return sum(x[:, place] * place for place in range(x.shape[1]))

        shapes = [((size, width),) for width in (3, 4) for size in (5, 2, 9)]
        network = TorchNetwork([LambdaOp(fn, "x", "y")], dynamic={"x": (0, 1)}, compile=QUICK)
        with network("infer", 1):
            for (shape,) in shapes:
                x = torch.randn(shape)
                torch.testing.assert_close(network.run_step({"x": x})["y"], fn(x))
        assert [one.fallback or one.reason for one in network.traces] == [
            "first step",
            f"{KIND}: 'x' has the shape (5, 4), not (any, 3); each length of axis 1 of 'x' is "
            "compiled by itself, because the graph depends on this length",
        ]

    def test_conditions_on_two_lengths_are_compared(self) -> None:
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] > x.shape[1] else x - 1

        shapes = [((5, 3),), ((7, 2),), ((3, 5),), ((2, 9),), ((9, 2),), ((4, 4),)]
        assert self.run(fn, shapes, {"x": (0, 1)}) == ["first step", SIZE]

    def test_tensors_that_are_not_contiguous(self) -> None:
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1) * x.shape[1]

        buffer = torch.randn(6, 20)
        network = TorchNetwork([LambdaOp(fn, "x", "y")], dynamic={"x": (0, 1)}, compile=QUICK)
        with network("infer", 1):
            for view in (buffer[:, :7], buffer[:4, :9], buffer[1:, 3:5], buffer.T[:5], buffer.T):
                for x in (view, view.contiguous()):
                    torch.testing.assert_close(network.run_step({"x": x})["y"], fn(x))
        first, second, third = _reasons(network)
        assert (first, second, third) == ("first step", KIND, KIND)

    def test_lengths_within_nested_values(self) -> None:
        def fn(x: dict[str, Any]) -> torch.Tensor:
            return (x["ids"] * x["parts"][0].sum()).softmax(1)

        network = TorchNetwork([LambdaOp(fn, "x", "y")], dynamic={"x": (0, 1)}, compile=QUICK)
        with network("infer", 1):
            for size, length in ((3, 4), (5, 7), (2, 9)):
                x = {"ids": torch.randn(size, length), "parts": (torch.randn(size, 2), "kept")}
                torch.testing.assert_close(network.run_step({"x": x})["y"], fn(x))
        assert _reasons(network) == ["first step"]

    def test_training_with_merged_gradients(self) -> None:
        def make(compile: Any) -> TorchNetwork:
            model = built(lambda: nn.GRUCell(1, 3), OPTIMIZERS["momentum"])

            def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                state = model(x.reshape(-1, 1)).reshape(*x.shape, 3)
                return functional.cross_entropy(state.mean(1), y)

            ops = [LambdaOp(loss, ["x", "y"], "loss"), UpdateOp(model, "loss", merge_grad=2)]
            return TorchNetwork(ops, dynamic={"x": (0, 1), "y": 0}, compile=compile)

        draw = random.Random(3)
        data = []
        for _ in range(16):
            size, length = draw.randint(2, 9), draw.randint(2, 9)
            data.append({"x": torch.randn(size, length), "y": torch.randint(0, 3, (size,))})
        assert captured(run_both(make, data)) <= 4

    def test_advice_of_the_warning_makes_one_program_do(self) -> None:
        def run(dynamic: Any) -> tuple[int, list[str]]:
            network = TorchNetwork([LambdaOp(abs, "x", "y")], dynamic=dynamic, compile=QUICK)
            with network("infer", 1), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for length in (3, 4, 5, 6, 7):
                    for _ in range(2):
                        network.run_step({"x": torch.ones(2, length)})
            return captured(network), [str(one.message) for one in caught]

        programs, (text,) = run(None)
        assert programs == 5
        (argument,) = re.findall(r"of axis 1 of 'x' with Network\(\.\.\., dynamic=(.*?)\)\. ", text)
        assert run(ast.literal_eval(argument)) == (1, [])

    @by_inductor
    @pytest.mark.slow
    def test_transformer_with_masks_by_inductor(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        model = built(lambda: nn.ModuleList([nn.Embedding(9, 8), layer, nn.Linear(8, 9)]))
        twin = copy.deepcopy(model)
        optimizer = OPTIMIZERS["sgd"](twin.parameters())

        def loss(model: Any, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            padding = torch.arange(tokens.shape[1]) >= lengths.unsqueeze(1)
            causal = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
            y = model[1](model[0](tokens), causal, padding)
            return functional.cross_entropy(
                model[2](y[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            )

        ops = [
            LambdaOp(lambda *values: loss(model, *values), ["x", "n"], "loss"),
            UpdateOp(model, "loss"),
        ]
        network = TorchNetwork(ops, dynamic={"x": (0, 1), "n": 0}, compile=True)
        draw = random.Random(1)
        with network("train", 1):
            for _ in range(10):
                size, length = draw.randint(2, 9), draw.randint(3, 20)
                tokens = torch.randint(0, 9, (size, length))
                lengths = torch.randint(2, length + 1, (size,))
                result = network.run_step({"x": tokens, "n": lengths})["loss"]
                optimizer.zero_grad()
                expected = loss(twin, tokens, lengths)
                expected.backward()
                optimizer.step()
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        assert _reasons(network) == ["first step"]
        assert_same_weights(model, twin, rtol=1e-3)

    def test_strides_of_axes_of_length_one_are_compared(self) -> None:
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * x.stride(0) + x.stride(1)

        network = TorchNetwork([LambdaOp(fn, "x", "y")], dynamic={"x": (0, 1)}, compile=QUICK)
        wide, tall = torch.rand(1, 6), torch.rand(6, 1)
        with network("infer", 1):
            for x in (wide, wide, tall.t(), tall.t(), tall, tall, wide.t(), wide.t()):
                torch.testing.assert_close(network.run_step({"x": x})["y"], fn(x))
        images = torch.rand(2, 1, 8, 8), torch.rand(2, 8, 8, 1).permute(0, 3, 1, 2)
        network = TorchNetwork([LambdaOp(fn, "x", "y")], dynamic={"x": (0, 2, 3)}, compile=QUICK)
        with network("infer", 1):
            for x in (*images, *images, images[1][:, :, 2:5]):
                torch.testing.assert_close(network.run_step({"x": x})["y"], fn(x))

    def test_padding_by_a_length(self) -> None:
        def pad(x: torch.Tensor) -> torch.Tensor:
            return functional.pad(x, (0, -x.shape[1] % 8))

        shapes = [((4, 6),), ((4, 7),), ((4, 5),), ((3, 13),)]
        assert self.run(pad, shapes, {"x": (0, 1)}) == ["first step"]

    def test_reasons_name_what_is_special_about_lengths(self) -> None:
        def run(fn: Any, shapes: list[tuple[int, int]]) -> str:
            network = TorchNetwork([LambdaOp(fn, "x", "y")], dynamic={"x": (0, 1)}, compile=QUICK)
            with network("infer", 1):
                for shape in shapes:
                    network.run_step({"x": torch.randn(shape)})
            return network.traces[-1].reason

        assert run(abs, [(4, 5), (1, 5)]) == f"{KIND}: an axis has the length 1"
        reason = run(lambda x: x * 2 if x.shape[1] > 4 else x, [(4, 5), (4, 3)])
        assert reason == SIZE

    def test_key_that_no_op_reads_is_warned_of(self) -> None:
        op = LambdaOp(abs, "tokens", "y")
        with pytest.warns(UserWarning, match="key 'token', which no op reads. Did you mean 'tok"):
            TorchNetwork([op], dynamic={"token": (0, 1)})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            TorchNetwork([op], dynamic={"tokens": (0, 1)})
