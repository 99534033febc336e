"""Ops on arrays that run after the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.integrations import sides as torch_sides
from tests.integrations.sides import Sides, steps


def network_with(lib: Any, pops: Any, ops: Any = None, fw: Any = torch_sides) -> Any:
    ops = ops or [lib.op.tensorop.LambdaOp(lambda x: x * 2, "x", "y")]
    return fw.network_class(lib)(ops, pops)


def data(fw: Any = torch_sides) -> list[dict[str, Any]]:
    return [{key: batch[key] for key in ("x", "label")} for batch in fw.batches(2)]


def test_functions_see_whole_batches_of_arrays(sides: Sides, fw: Any) -> None:
    def program(lib: Any) -> Any:
        seen: list[Any] = []

        def standardised(y: np.ndarray, label: np.ndarray) -> list[np.ndarray]:
            seen.extend([type(y), y.shape, y.dtype, type(label), label.dtype])
            return [(y - y.mean()) / y.std(), label.astype("float64").sum()]

        ops = lib.op.numpyop
        pops = [
            ops.LambdaOp(standardised, ["y", "label"], ["z", "count"]),
            ops.LambdaOp(lambda z: z.max(axis=1), "z", "most"),
            None,
        ]
        network = network_with(lib, pops, fw=fw)
        return seen, [steps(network, data(fw), "eval", eager=eager) for eager in (True, False)]

    fw.agree(sides, program)


def test_an_op_for_single_samples(sides: Sides, fw: Any) -> None:
    def program(lib: Any) -> Any:
        class Sample(lib.op.numpyop.NumpyOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                y, label = data
                assert isinstance(y, np.ndarray)
                return [y[:2] * (label + 1), y.sum() > 0]

        class One(lib.op.numpyop.NumpyOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                return data.mean() * (2 if state["mode"] == "eval" else 1)

        pops = [Sample(["y", "label"], ["parts", "positive"]), One("parts", "mean")]
        network = network_with(lib, pops, fw=fw)
        return [steps(network, data(fw), mode, eager=True) for mode in ("eval", "infer")]

    fw.agree(sides, program)


def test_an_op_that_writes_into_its_input(sides: Sides, fw: Any) -> None:
    """Neither the caller's tensors nor those of the step show it."""

    def program(lib: Any) -> Any:
        class Zeroed(lib.op.numpyop.NumpyOp):  # type: ignore[misc]
            def forward_batch(self, data: Any, state: Any) -> Any:
                if fw.NAME == "tf":
                    data = np.array(data)  # its own are read-only
                data[0] = 0
                return data

        network = network_with(lib, [Zeroed("x", "z"), Zeroed("y", "y")], fw=fw)
        results = steps(network, data(fw), "eval", eager=True)
        return [(result["z"], result["y"]) for result in results]

    results = fw.agree(sides, program)
    assert not np.asarray(results[0][0][0]).any()
