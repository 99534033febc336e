"""What FastEstimator's documentation says of Network, build and the base of all ops.

Each fact is tested in FastEstimator as it is, and swapped.
"""

from __future__ import annotations

import sys
from collections import ChainMap
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange"),
]

from tests.integrations.swap.running import (
    array,
    gradient_descent,
    linear,
    matrix_of,
    network,
    run,
    tensor,
)

Fe = Any
X = np.float32([[1, 2], [3, 4]])


def model_of(fe: Fe, framework: str, **settings: Any) -> Any:
    settings = {"optimizer_fn": gradient_descent(framework, 0.5), **settings}
    return fe.build(lambda: linear(framework), **settings)


def recording(fe: Fe) -> tuple[type, list[Any]]:
    """Make a class of ops that take down what they are given."""
    seen: list[Any] = []

    class Recording(fe.op.tensorop.TensorOp):  # type: ignore[misc, name-defined]
        def forward(self, data: Any, state: dict[str, Any]) -> Any:
            seen.append((data, state))
            return data

    return Recording, seen


# Op


def test_a_key_gives_the_value_and_a_list_of_keys_a_list(fe: Fe) -> None:
    made, seen = recording(fe)
    ops = [made("x", "a"), made(["x"], ["b"]), made(("x", "x"), ("c", "d")), made()]
    result = run(fe, "torch", ops, {"x": X})
    assert [isinstance(data, list) for data, _ in seen] == [False, True, True, False]
    assert len(seen[2][0]) == 2
    assert seen[3][0] is None
    for key in "abcd":
        np.testing.assert_array_equal(result[key], X)


def test_in_list_and_out_list_can_be_overridden(fe: Fe) -> None:
    made, seen = recording(fe)
    op = made("x", "y")
    op.in_list = op.out_list = True
    result = run(fe, "torch", op, {"x": X})
    assert isinstance(seen[0][0], list)
    np.testing.assert_array_equal(result["y"], X)


@pytest.mark.parametrize(
    ("wanted", "modes"),
    [
        (None, ["train", "eval", "test", "infer"]),
        ("eval", ["eval"]),
        (["train", "test"], ["train", "test"]),
        ("!infer", ["train", "eval", "test"]),
        ("!train", ["eval", "test", "infer"]),
    ],
    ids=str,
)
def test_an_op_runs_in_its_modes(fe: Fe, wanted: Any, modes: list[str]) -> None:
    made, seen = recording(fe)
    for mode in ("train", "eval", "test", "infer"):
        ops = [made("x", "y", mode=wanted), fe.op.tensorop.TensorOp("x", "z")]
        run(fe, "torch", ops, {"x": X}, mode=mode)
    assert [state["mode"] for _, state in seen] == modes


@pytest.mark.parametrize(
    ("wanted", "ids"), [(None, ["", "a", "b"]), ("a", ["a"]), ("!a", ["", "b"])], ids=str
)
def test_an_op_runs_for_its_datasets(fe: Fe, wanted: Any, ids: list[str]) -> None:
    found = []
    for ds_id in ("", "a", "b"):
        made, seen = recording(fe)
        ops = [made("x", "y", ds_id=wanted), fe.op.tensorop.TensorOp("x", "z")]
        run(fe, "torch", ops, {"x": X}, ds_id=ds_id)
        found += [ds_id] * len(seen)
    assert found == ids


@pytest.mark.parametrize("wrong", [{"mode": "training"}, {"mode": ["train", "!eval"]}], ids=str)
def test_modes_that_are_refused(fe: Fe, wrong: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        fe.op.tensorop.TensorOp("x", "x", **wrong)


def test_an_output_may_overwrite_a_key(fe: Fe, framework: str) -> None:
    double = fe.op.tensorop.LambdaOp(fn=lambda x: x * 2, inputs="x", outputs="x")
    np.testing.assert_array_equal(run(fe, framework, [double, double], {"x": X})["x"], 4 * X)


# TensorOp


def test_build_is_called_with_the_framework(fe: Fe, framework: str) -> None:
    calls: list[Any] = []

    class Built(fe.op.tensorop.TensorOp):  # type: ignore[misc, name-defined]
        def build(self, framework: str, device: Any = None) -> None:
            calls.append((framework, device))

    network(fe, framework, Built("x", "y"))
    ((built_for, device),) = calls
    assert built_for == framework
    assert (device is not None) == (framework == "torch")


def test_what_is_called_to_ask_an_op(fe: Fe) -> None:
    op = fe.op.tensorop.TensorOp("x", "y")
    assert op.get_fe_models() == set()
    assert op.get_fe_loss_keys() == set()
    assert op.fe_retain_graph(True) is None
    update = fe.op.tensorop.model.UpdateOp(model_of(fe, "torch"), "loss")
    assert update.get_fe_loss_keys() == {"loss"}
    assert len(update.get_fe_models()) == 1
    assert update.fe_retain_graph(True) is True
    assert update.fe_retain_graph() is True
    assert update.fe_retain_graph(False) is False


def test_the_state_tells_of_the_execution(fe: Fe) -> None:
    made, seen = recording(fe)
    run(fe, "torch", made("x", "y"), {"x": X}, mode="eval", epoch=7)
    ((_, state),) = seen
    assert (state["mode"], state["epoch"]) == ("eval", 7)


# Network


def test_the_network_fits_the_models(fe: Fe, framework: str) -> None:
    made = fe.Network([fe.op.tensorop.model.ModelOp(model_of(fe, framework), "x", "y")])
    module = sys.modules["fastestimator.network"]
    assert isinstance(made, module.TFNetwork if framework == "tf" else module.TorchNetwork)
    assert isinstance(made, module.BaseNetwork)
    assert made.target_type == framework


def test_models_of_both_frameworks_do_not_mix(fe: Fe) -> None:
    ops = [
        fe.op.tensorop.model.ModelOp(model_of(fe, one, model_name=one), "x", one)
        for one in ("torch", "tf")
    ]
    with pytest.raises(AssertionError):
        fe.Network(ops)


def test_a_model_of_no_framework(fe: Fe) -> None:
    class Holding(fe.op.tensorop.TensorOp):  # type: ignore[misc, name-defined]
        def get_fe_models(self) -> set[Any]:
            return {Odd()}

    class Odd:
        model_name = "odd"

    with pytest.raises(ValueError, match="known"):
        fe.Network([Holding("x", "y")])


def test_mixed_precision_is_for_all_models_or_for_none(fe: Fe, framework: str) -> None:
    ops = [
        fe.op.tensorop.model.ModelOp(
            model_of(fe, framework, model_name=f"half{half}", mixed_precision=half), "x", "y"
        )
        for half in (True, False)
    ]
    with pytest.raises(ValueError, match="mixed"):
        fe.Network(ops)


def test_postprocessing_sees_batches_of_arrays(fe: Fe, framework: str) -> None:
    seen: list[Any] = []

    def note(x: Any) -> Any:
        seen.append(x)
        return x + 1

    pop = fe.op.numpyop.LambdaOp(fn=note, inputs="y", outputs="z")
    op = fe.op.tensorop.LambdaOp(fn=lambda x: x * 2, inputs="x", outputs="y")
    parameter = {"postprocessing": [pop]}
    result = run(fe, framework, op, {"x": X}, **parameter)
    assert isinstance(seen[0], np.ndarray)
    np.testing.assert_array_equal(seen[0], 2 * X)
    np.testing.assert_array_equal(result["z"], 2 * X + 1)


def test_the_result_is_laid_over_the_batch(fe: Fe, framework: str) -> None:
    op = fe.op.tensorop.LambdaOp(fn=lambda x: x * 2, inputs="x", outputs="x")
    result = run(fe, framework, op, {"x": X, "other": X})
    np.testing.assert_array_equal(result["x"], 2 * X)
    np.testing.assert_array_equal(result["other"], X)


def test_run_step_in_a_context(fe: Fe, framework: str) -> None:
    made = fe.Network([fe.op.tensorop.model.ModelOp(model_of(fe, framework), "x", "y")])
    with made(epoch=1, mode="train", ds_id=""):
        result = made.run_step({"x": tensor(X, framework)})
    np.testing.assert_allclose(array(result["y"]), X @ [[1.0], [2.0]])
    np.testing.assert_array_equal(array(result["x"]), X)


def test_what_is_asked_for_is_what_is_computed_for(fe: Fe) -> None:
    """A context tells what it takes from a batch and what it gives."""
    lambda_op = fe.op.tensorop.LambdaOp
    made = network(
        fe,
        "torch",
        [
            lambda_op(fn=lambda x: x + 1, inputs="x", outputs="a"),
            lambda_op(fn=lambda x: x + 2, inputs="z", outputs="b"),
        ],
    )
    with made(mode="infer", epoch=1, ds_id="", desired_output_keys={"a"}):
        assert set(made.ctx_outputs) == {"a"}
        assert {"x", "z"} <= set(made.ctx_inputs)
        result = made.run_step({"x": tensor(X, "torch"), "z": tensor(X, "torch")})
    assert set(result) == {"x", "z", "a"}


def test_transform_of_a_pipeline(fe: Fe, framework: str) -> None:
    data = fe.dataset.NumpyDataset({"x": np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])})
    pipeline = fe.Pipeline(eval_data=data, batch_size=2, num_process=0)
    made = fe.Network([fe.op.tensorop.model.ModelOp(model_of(fe, framework), "x", "y")])
    batches = pipeline.get_results(mode="eval", num_steps=2, shuffle=False)
    results = made.transform(pipeline, mode="eval")
    assert len(results) == 2
    for result, batch in zip(results, batches, strict=True):
        np.testing.assert_array_equal(array(result["y"]), array(batch["x"]) @ [[1], [2]])


def test_loss_keys_are_those_of_updates(fe: Fe) -> None:
    ops, model = fe.op.tensorop, model_of(fe, "torch")
    made = fe.Network(
        [
            ops.model.ModelOp(model, "x", "y"),
            ops.loss.MeanSquaredError(("y", "t"), "error"),
            ops.loss.MeanSquaredError(("y", "t"), "other"),
            ops.model.UpdateOp(model, "error"),
        ]
    )
    assert made.get_loss_keys() == {"error"}
    assert model.loss_name == {"error"}


def test_scheduled_items(fe: Fe) -> None:
    made, _ = recording(fe)
    schedule = fe.schedule.EpochScheduler({1: made("x", "y")})
    pop = fe.op.numpyop.LambdaOp(fn=lambda x: x, inputs="y", outputs="y")
    items = network(fe, "torch", [schedule], postprocessing=[pop]).get_scheduled_items("train")
    assert schedule in items
    assert pop in items


def test_scheduled_ops(fe: Fe, framework: str) -> None:
    add = lambda n: fe.op.tensorop.LambdaOp(  # noqa: E731
        fn=lambda x: x + n, inputs="x", outputs="y"
    )
    made = network(
        fe,
        framework,
        [add(0), fe.schedule.EpochScheduler({2: add(10), 3: None, 4: add(20)})],
    )
    found = [
        array(made.transform({"x": tensor(X, framework)}, mode="infer", epoch=epoch)["y"])
        for epoch in (1, 2, 3, 4)
    ]
    for value, added in zip(found, (0, 10, 0, 20), strict=True):
        np.testing.assert_array_equal(value, X + added)


# build


@pytest.mark.parametrize(
    "name", ["adadelta", "adagrad", "adam", "adamax", "rmsprop", "sgd"], ids=str
)
def test_optimizers_by_name(fe: Fe, framework: str, name: str) -> None:
    model = model_of(fe, framework, optimizer_fn=name)
    assert type(model.optimizer).__name__.lower() == name
    assert model.current_optimizer is model.optimizer


def test_an_optimizer_of_no_name(fe: Fe, framework: str) -> None:
    with pytest.raises(KeyError, match="fastest"):
        model_of(fe, framework, optimizer_fn="fastest")


def test_optimizers_by_function(fe: Fe, framework: str) -> None:
    model = model_of(fe, framework, optimizer_fn=gradient_descent(framework, 0.125))
    assert float(fe.backend.get_lr(model)) == pytest.approx(0.125)


def test_a_model_without_an_optimizer(fe: Fe, framework: str) -> None:
    model = model_of(fe, framework, optimizer_fn=None)
    assert model.optimizer is None
    assert model.fe_compiled


def test_several_models(fe: Fe, framework: str) -> None:
    models = fe.build(
        lambda: [linear(framework), linear(framework)],
        optimizer_fn=["sgd", gradient_descent(framework, 0.125)],
        model_name=["one", "two"],
    )
    assert [model.model_name for model in models] == ["one", "two"]
    assert float(fe.backend.get_lr(models[1])) == pytest.approx(0.125)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer_fn": ["sgd"]},
        {"optimizer_fn": ["sgd", "sgd"], "model_name": ["a"]},
        {"optimizer_fn": ["sgd", "sgd"], "weights_path": ["a.pt"]},
    ],
    ids=str,
)
def test_as_many_of_all_as_models(fe: Fe, settings: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        fe.build(lambda: [linear("torch"), linear("torch")], **settings)


def test_names_are_made(fe: Fe) -> None:
    names = [model_of(fe, "torch").model_name for _ in range(2)]
    assert len(set(names)) == 2
    assert all(name.startswith("model") for name in names)


def test_weights_to_start_from(fe: Fe, framework: str, tmp_path: Any) -> None:
    first = fe.build(lambda: linear(framework, [[7.0, 8.0]]), "sgd", model_name="first")
    path = fe.backend.save_model(first, str(tmp_path))
    second = model_of(fe, framework, weights_path=path)
    np.testing.assert_array_equal(matrix_of(second), [[7, 8]])


def test_scheduled_optimizers(fe: Fe, framework: str) -> None:
    model = model_of(
        fe,
        framework,
        optimizer_fn=fe.schedule.EpochScheduler(
            {1: gradient_descent(framework, 0.5), 2: gradient_descent(framework, 0.25)}
        ),
    )
    made = fe.Network([fe.op.tensorop.model.ModelOp(model, "x", "y")])
    rates = []
    for epoch in (1, 2, 3):
        with made(mode="train", epoch=epoch, ds_id=""):
            rates.append(float(fe.backend.get_lr(model)))
    assert rates == [0.5, 0.25, 0.25]


def test_half_precision_is_a_property_of_a_model(fe: Fe) -> None:
    assert model_of(fe, "torch", mixed_precision=True).mixed_precision is True
    assert model_of(fe, "torch").mixed_precision is False


def test_what_makes_no_model(fe: Fe) -> None:
    with pytest.raises(ValueError, match="str"):
        fe.build(lambda: "no model", optimizer_fn="sgd")


def test_transform_lays_what_was_written_over_the_batch(fe: Fe, framework: str) -> None:
    ops = fe.op.tensorop
    made = network(fe, framework, [ops.LambdaOp(abs, "x", "y"), ops.LambdaOp(abs, "x", "x")])
    for result in (
        made.transform({"x": -X, "z": X}, mode="infer"),
        *made.transform([{"x": -X, "z": X}], mode="infer"),
    ):
        assert type(result) is ChainMap
        written, read = result.maps
        assert list(result) == ["x", "z", "y"]
        for found, expected in ((written, {"x": X, "y": X}), (read, {"x": -X, "z": X})):
            assert found.keys() == expected.keys()
            for key in expected:
                np.testing.assert_array_equal(array(found[key]), expected[key])
        result["z"] = 1
        assert written["z"] == 1
        with pytest.raises(KeyError):
            del result["unknown"]
