"""What FastEstimator's documentation says of the Estimator and of traces around a Network.

Each fact is tested in FastEstimator as it is, and swapped.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastestimator", reason="swaps into FastEstimator: `make test-fe`")

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange"),
]

from tests.integrations.swap.running import array, gradient_descent, linear, matrix_of

Fe = Any
IMAGES = np.float32([[1, 0], [0, 1], [1, 1], [2, 1]])
TRUTH = np.float32([[1], [1], [1], [1]])
STEPS = 2


@pytest.fixture(autouse=True)
def _no_history(fe: Fe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep FastEstimator from writing experiments into the user's history."""
    monkeypatch.setattr(fe, "fe_history_path", False)


def pipeline(fe: Fe, **data: Any) -> Any:
    arrays = {"x": IMAGES, "t": TRUTH}
    sets = {f"{mode}_data": fe.dataset.NumpyDataset(arrays) for mode in ("train", "eval", "test")}
    return fe.Pipeline(**{**sets, **data}, batch_size=STEPS, num_process=0)


def model_of(fe: Fe, framework: str = "torch", rate: float = 0.125) -> Any:
    return fe.build(
        lambda: linear(framework),
        optimizer_fn=gradient_descent(framework, rate),
        model_name="fitted",
    )


class Training:
    """A model, a network that trains it, and what its ops were called with."""

    def __init__(self, fe: Fe, framework: str = "torch", rate: float = 0.125) -> None:
        self.fe = fe
        self.states: list[dict[str, Any]] = []
        self.model = model_of(fe, framework, rate)
        states = self.states

        class Note(fe.op.tensorop.TensorOp):  # type: ignore[misc, name-defined]
            def forward(self, data: Any, state: dict[str, Any]) -> Any:
                states.append({key: state[key] for key in ("mode", "epoch", "warmup")})
                return data

        tensorop = fe.op.tensorop
        self.ops = [
            Note(inputs="x", outputs="x"),
            tensorop.model.ModelOp(self.model, "x", "y"),
            tensorop.loss.MeanSquaredError(("y", "t"), "error"),
            tensorop.model.UpdateOp(self.model, "error"),
        ]

    def estimator(self, epochs: int = 2, ops: Any = None, **settings: Any) -> Any:
        data = settings.pop("pipeline", None) or pipeline(self.fe)
        network = self.fe.Network(ops or self.ops)
        settings.setdefault("log_steps", None)
        return self.fe.Estimator(data, network, epochs, **settings)

    def steps(self, mode: str = "train", warmup: bool = False) -> list[int]:
        """List the epochs of the steps that were run."""
        return [
            one["epoch"]
            for one in self.states
            if one["mode"] == mode and bool(one["warmup"]) == warmup
        ]


def trace_of(fe: Fe, **hooks: Any) -> Any:
    """Make a trace of functions, by the name of the method."""
    base = sys.modules["fastestimator.trace.trace"].Trace
    inputs, mode = hooks.pop("inputs", None), hooks.pop("mode", None)
    made = type("Own", (base,), hooks)
    return made(inputs=inputs, mode=mode)


# Estimator


@pytest.mark.parametrize("name", [None, "an experiment"])
def test_fit_returns_a_summary_if_it_has_a_name(fe: Fe, name: str | None) -> None:
    summary = Training(fe).estimator(log_steps=0).fit(name, warmup=False)
    assert (summary is None) == (name is None)
    if summary:
        assert summary.name == name
        assert len(summary.history["eval"]["error"]) == 2


def test_fit_trains(fe: Fe, framework: str) -> None:
    """Gradient descent, as numpy does it on the same batches."""
    training = Training(fe, framework)
    batches: list[Any] = []

    def note(self: Any, data: Any) -> None:
        batches.append((array(data["x"]), array(data["t"])))

    trace = trace_of(fe, inputs=("x", "t"), mode="train", on_batch_end=note)
    training.estimator(traces=trace).fit(warmup=False)
    weights = np.float32([[1, 2]])
    for x, t in batches:
        weights -= 0.125 * 2 * ((x @ weights.T - t) * x).mean(axis=0, keepdims=True)
    assert len(batches) == 4
    np.testing.assert_allclose(matrix_of(training.model), weights, rtol=1e-5)


def test_epochs_and_evaluations(fe: Fe) -> None:
    training = Training(fe)
    training.estimator(epochs=3).fit(warmup=False)
    assert training.steps() == [1, 1, 2, 2, 3, 3]
    assert training.steps("eval") == [1, 1, 2, 2, 3, 3]


def test_an_estimator_of_no_epochs_tests_in_epoch_0(fe: Fe, framework: str) -> None:
    training = Training(fe, framework)
    training.estimator(epochs=0).test(eager=True)
    assert list(map(int, training.steps("test"))) == [0, 0]


@pytest.mark.parametrize("count", [1, 5])
def test_steps_are_cut_short_or_extended(fe: Fe, count: int) -> None:
    training = Training(fe)
    settings = {"train_steps_per_epoch": count, "eval_steps_per_epoch": 1}
    training.estimator(epochs=1, **settings).fit(warmup=False)
    assert len(training.steps()) == count
    assert len(training.steps("eval")) == 1


def test_warmup_tests_each_epoch_that_changes(fe: Fe) -> None:
    """One step of every mode at each such epoch, and nothing is trained."""
    training = Training(fe)
    more = fe.op.tensorop.LambdaOp(fn=lambda x: x + 0, inputs="x", outputs="x")
    ops = [*training.ops, fe.schedule.EpochScheduler({3: more})]
    before = matrix_of(training.model)
    found: list[Any] = []

    def stop(self: Any, data: Any) -> None:
        found.append(matrix_of(training.model))

    training.estimator(epochs=4, ops=ops, traces=trace_of(fe, on_begin=stop)).fit(warmup=True)
    assert training.steps(warmup=True) == [1, 3]
    assert training.steps("eval", warmup=True) == [1, 3]
    np.testing.assert_array_equal(found[0], before)


def test_warmup_finds_what_would_fail_later(fe: Fe) -> None:
    training = Training(fe)

    def fail(x: Any) -> Any:
        raise ArithmeticError("in epoch 30")

    failing = fe.op.tensorop.LambdaOp(fn=fail, inputs="x", outputs="x")
    ops = [*training.ops, fe.schedule.EpochScheduler({30: failing})]
    with pytest.raises(ArithmeticError):
        training.estimator(epochs=30, ops=ops).fit()
    assert training.steps() == []


def test_eager(fe: Fe) -> None:
    """In TensorFlow each step runs Python, instead of a graph that was traced once."""
    training = Training(fe, "tf")
    training.estimator(epochs=1).fit(warmup=False, eager=True)
    assert len(training.steps()) == STEPS


def test_test_runs_one_epoch(fe: Fe) -> None:
    training = Training(fe)
    estimator = training.estimator(log_steps=0)
    before = matrix_of(training.model)
    summary = estimator.test("tested")
    np.testing.assert_array_equal(matrix_of(training.model), before)
    assert "error" in summary.history["test"]


def test_test_goes_on_with_the_name_of_fit(fe: Fe) -> None:
    estimator = Training(fe).estimator(epochs=1)
    fitted = estimator.fit("named", warmup=False)
    tested = estimator.test()
    assert tested is not None
    assert tested.name == fitted.name == "named"


def test_monitor_names_are_logged(fe: Fe) -> None:
    """And the losses of models, without being named."""
    training = Training(fe)
    tensorop = fe.op.tensorop
    ops = [
        *training.ops,
        tensorop.loss.L1_Loss(("y", "t"), "distance"),
        tensorop.loss.L1_Loss(("y", "t"), "unnamed"),
    ]
    summary = training.estimator(ops=ops, monitor_names="distance", log_steps=0).fit(
        "named", warmup=False
    )
    assert {"error", "distance"} <= set(summary.history["eval"])
    assert "unnamed" not in summary.history["eval"]


@pytest.mark.parametrize("steps", [1, 0, None])
def test_log_steps(fe: Fe, capsys: pytest.CaptureFixture[str], steps: int | None) -> None:
    """With 0 the epochs are printed and no steps, with None nothing is."""
    Training(fe).estimator(epochs=1, log_steps=steps).fit(warmup=False)
    text = capsys.readouterr().out
    assert ("FastEstimator-Train: step: 1; " in text) == (steps == 1)
    for line in ("FastEstimator-Train: ", "FastEstimator-Eval: "):
        assert (line in text) == (steps is not None)


def test_log_steps_that_are_refused(fe: Fe) -> None:
    with pytest.raises(AssertionError):
        Training(fe).estimator(log_steps=-1)


def test_scheduled_batch_sizes_and_datasets(fe: Fe) -> None:
    training = Training(fe)
    data = fe.Pipeline(
        train_data=fe.dataset.NumpyDataset({"x": IMAGES, "t": TRUTH}),
        batch_size=fe.schedule.EpochScheduler({1: 1, 2: 4}),
        num_process=0,
    )
    training.estimator(pipeline=data).fit(warmup=False)
    assert training.steps() == [1, 1, 1, 1, 2]


def test_a_dataset_for_each_id(fe: Fe) -> None:
    training = Training(fe)
    arrays = fe.dataset.NumpyDataset({"x": IMAGES, "t": TRUTH})
    seen: list[Any] = []

    def note(self: Any, data: Any) -> None:
        seen.append((self.system.ds_id, array(data["x"]), array(data["t"])))

    data = pipeline(fe, eval_data={"one": arrays, "two": arrays})
    double = fe.op.tensorop.LambdaOp(fn=lambda x: x * 2, inputs="x", outputs="x", ds_id="two")
    estimator = training.estimator(
        epochs=1,
        pipeline=data,
        ops=[double, *training.ops],
        traces=trace_of(fe, inputs=("x", "t"), mode="eval", on_batch_end=note),
        log_steps=0,
    )
    summary = estimator.fit("both", warmup=False)
    assert [ds_id for ds_id, _, _ in seen] == ["one", "one", "two", "two"]
    np.testing.assert_array_equal(seen[2][1], 2 * seen[0][1])
    weights = matrix_of(training.model)
    for name in ("one", "two"):
        losses = [((x @ weights.T - t) ** 2).mean() for ds_id, x, t in seen if ds_id == name]
        (logged,) = summary.history["eval"][f"error|{name}"].values()
        assert float(logged) == pytest.approx(np.mean(losses), rel=1e-5)


# traces


def losses_of(training: Training, values: list[float], output: str = "error") -> Any:
    """Make a trace that says what the metric of each epoch was."""

    def say(self: Any, data: Any) -> None:
        data.write_with_log("metric", values[self.system.epoch_idx - 1])

    base = sys.modules["fastestimator.trace.trace"].Trace
    made = type("Metric", (base,), {"on_epoch_end": say})
    return made(outputs="metric", mode="eval")


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({}, 3),
        ({"patience": 2}, 4),
        ({"min_delta": 2.5}, 2),
        ({"compare": "max"}, 2),
        ({"baseline": 1.0}, 1),
    ],
    ids=str,
)
def test_early_stopping(fe: Fe, settings: dict[str, Any], epochs: int) -> None:
    """The metric falls once, by two, and stays."""
    training = Training(fe)
    stopping = fe.trace.adapt.EarlyStopping(monitor="metric", **settings)
    traces = [losses_of(training, [5.0, 3.0, 3.0, 3.0, 3.0, 3.0]), stopping]
    training.estimator(epochs=6, traces=traces).fit(warmup=False)
    assert max(training.steps()) == epochs


def test_early_stopping_refuses(fe: Fe) -> None:
    for wrong in ({"compare": "best"}, {"monitor": ["a", "b"]}):
        with pytest.raises(ValueError, match=r"compare_mode|one monitor"):
            fe.trace.adapt.EarlyStopping(**wrong)


def test_terminate_on_nan(fe: Fe) -> None:
    """All losses of models are watched."""
    training = Training(fe, rate=1e30)
    training.estimator(epochs=9, traces=fe.trace.adapt.TerminateOnNaN()).fit(warmup=False)
    assert 1 <= max(training.steps()) < 9


def rates_of(fe: Fe, framework: str, make: Any) -> list[float]:
    """List the learning rate in each step."""
    training = Training(fe, framework)
    found: list[float] = []

    def note(self: Any, data: Any) -> None:
        found.append(float(fe.backend.get_lr(training.model)))

    traces = [make(training.model), trace_of(fe, mode="train", on_batch_end=note)]
    training.estimator(traces=traces).fit(warmup=False)
    return found


def test_rates_by_step(fe: Fe, framework: str) -> None:
    def rate(step: int) -> float:
        return 0.5 / step

    scheduler = fe.trace.adapt.LRScheduler
    found = rates_of(fe, framework, lambda model: scheduler(model=model, lr_fn=rate))
    np.testing.assert_allclose(found, [0.5, 0.25, 0.5 / 3, 0.125], rtol=1e-6)


def test_rates_by_epoch(fe: Fe) -> None:
    """The documented example, with a cosine."""

    def rate(epoch: int) -> float:
        decayed: float = fe.schedule.cosine_decay(epoch, cycle_length=4, init_lr=1e-3)
        return decayed

    scheduler = fe.trace.adapt.LRScheduler
    found = rates_of(fe, "torch", lambda model: scheduler(model=model, lr_fn=rate))
    expected = [1e-6 + (1e-3 - 1e-6) * (1 + math.cos(math.pi * n / 4)) / 2 for n in (1, 1, 2, 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [lambda time: 0.1, lambda step, epoch: 0.1, 0.1],
    ids=["another argument", "two arguments", "no function"],
)
def test_rates_that_are_refused(fe: Fe, wrong: Any) -> None:
    with pytest.raises(AssertionError):
        fe.trace.adapt.LRScheduler(model=model_of(fe), lr_fn=wrong)


def test_rates_fall_on_a_plateau(fe: Fe) -> None:
    training = Training(fe)
    plateau = fe.trace.adapt.ReduceLROnPlateau(
        training.model, metric="metric", patience=2, factor=0.5
    )
    traces = [losses_of(training, [5.0, 4.0, 4.0, 4.0]), plateau]
    training.estimator(epochs=4, traces=traces).fit(warmup=False)
    assert float(fe.backend.get_lr(training.model)) == pytest.approx(0.0625)


def test_a_plateau_of_the_models_loss(fe: Fe) -> None:
    """With no metric it is inferred, once the model is in an UpdateOp."""
    model = model_of(fe)
    with pytest.raises(AssertionError):
        fe.trace.adapt.ReduceLROnPlateau(model)
    fe.Network([fe.op.tensorop.model.UpdateOp(model, "its loss")])
    assert fe.trace.adapt.ReduceLROnPlateau(model).inputs == ["its loss"]
    assert fe.trace.io.BestModelSaver(model, "folder").metric == "its loss"


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [1, 2, 3, 4]),
        ({"frequency": 2}, [2, 4]),
        ({"max_to_keep": 2}, [3, 4]),
        ({"max_to_keep": 0}, [1, 2, 3, 4]),
    ],
    ids=str,
)
def test_model_saver(fe: Fe, tmp_path: Path, settings: dict[str, int], kept: list[int]) -> None:
    training = Training(fe)
    folder = tmp_path / "saved"
    saver = fe.trace.io.ModelSaver(training.model, save_dir=str(folder), **settings)
    training.estimator(epochs=4, traces=saver).fit(warmup=False)
    assert sorted(os.listdir(folder)) == [f"fitted_epoch_{one}.pt" for one in kept]


def test_savers_refuse(fe: Fe) -> None:
    model, io = model_of(fe), fe.trace.io
    with pytest.raises(ValueError, match="non-negative"):
        io.ModelSaver(model, "folder", max_to_keep=-1)
    with pytest.raises(ValueError, match="architecture"):
        io.ModelSaver(model, "folder", save_architecture=True)
    with pytest.raises(ValueError, match="architecture"):
        io.BestModelSaver(model, "folder", metric="a", save_architecture=True)
    with pytest.raises(ValueError, match="save_best_mode"):
        io.BestModelSaver(model, "folder", metric="a", save_best_mode="best")


@pytest.mark.parametrize(
    ("framework", "best_mode", "best", "reload"),
    [("torch", "min", 2, True), ("torch", "max", 3, False), ("tf", "max", 3, True)],
)
def test_best_model_saver(
    fe: Fe, framework: str, tmp_path: Path, best_mode: str, best: int, reload: bool
) -> None:
    training = Training(fe, framework)
    after: list[Any] = []

    def note(self: Any, data: Any) -> None:
        after.append(matrix_of(training.model))

    saver = fe.trace.io.BestModelSaver(
        training.model,
        save_dir=str(tmp_path),
        metric="metric",
        save_best_mode=best_mode,
        load_best_final=reload,
    )
    traces = [
        losses_of(training, [5.0, 3.0, 9.0, 4.0]),
        saver,
        trace_of(fe, mode="eval", on_epoch_end=note),
    ]
    estimator = training.estimator(epochs=4, traces=traces, log_steps=0)
    summary = estimator.fit("best", warmup=False)
    found = matrix_of(training.model)
    np.testing.assert_array_equal(found, after[best - 1] if reload else after[-1])
    saved = fe.build(lambda: linear(framework), "sgd", weights_path=saver.model_path)
    np.testing.assert_array_equal(matrix_of(saved), after[best - 1])
    shown = summary.history["eval"]
    assert {f"{best_mode}_metric", "since_best_metric"} <= set(shown)
    assert list(shown["since_best_metric"].values())[-1] == 4 - best


def test_a_saved_architecture_can_be_loaded(fe: Fe, tmp_path: Path) -> None:
    import tensorflow as tf

    training = Training(fe, "tf")
    saver = fe.trace.io.ModelSaver(training.model, save_dir=str(tmp_path), save_architecture=True)
    training.estimator(epochs=1, traces=saver).fit(warmup=False)
    loaded = tf.keras.models.load_model(tmp_path / "fitted_epoch_1", compile=False)
    np.testing.assert_array_equal(loaded.get_weights()[0], training.model.get_weights()[0])


# summaries


def test_summaries_can_be_merged(fe: Fe) -> None:
    summary = sys.modules["fastestimator.summary.summary"].Summary
    one, two = summary("one"), summary("two")
    one.history["train"]["error"][1] = 2.0
    two.history["train"]["error"][2] = 3.0
    one.merge(two)
    assert dict(one.history["train"]["error"]) == {1: 2.0, 2: 3.0}
    assert bool(one)
    assert not summary(None)
