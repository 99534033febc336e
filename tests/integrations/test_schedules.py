"""Schedulers of ops, of optimizers and of plain values; learning rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integrations import graphs, tf_sides
from tests.integrations.graphs import Item
from tests.integrations.sides import WEIGHTS, Sides, batches, mlp, steps
from tests.integrations.tf_sides import tf

values = st.sampled_from(["a", "b", "c", None])
epoch_dicts = st.dictionaries(st.integers(1, 12), values, min_size=1, max_size=5)
repeat_lists = st.lists(values, min_size=2, max_size=5)


@given(epoch_dicts, repeat_lists)
def test_values(sides: Sides, epoch_dict: dict[int, Any], repeat_list: list[Any]) -> None:
    def program(lib: Any) -> Any:
        schedulers = [
            lib.schedule.EpochScheduler(dict(epoch_dict)),
            lib.schedule.RepeatScheduler(list(repeat_list)),
        ]
        return [
            [
                [scheduler.get_current_value(epoch) for epoch in range(15)],
                scheduler.get_all_values(),
            ]
            for scheduler in schedulers
        ]

    sides.agree(program)


@pytest.mark.parametrize("epoch_dict", [{}, {0: "a"}, {-3: "a"}, {"1": "a"}, {1.5: "a"}, ["a"]])
def test_epochs_that_are_refused(sides: Sides, epoch_dict: Any) -> None:
    def program(lib: Any) -> Any:
        try:
            scheduler = lib.schedule.EpochScheduler(epoch_dict)
        except AssertionError:
            return "refused"
        return [scheduler.get_current_value(epoch) for epoch in range(4)]

    sides.agree(program)


@pytest.mark.parametrize("repeat_list", [[], ["a"], ("a", "b"), "ab"])
def test_repetitions_that_are_refused(sides: Sides, repeat_list: Any) -> None:
    def program(lib: Any) -> Any:
        with pytest.raises(AssertionError):
            lib.schedule.RepeatScheduler(repeat_list)

    sides.agree(program)


plain_items = st.one_of(graphs.pops, st.lists(values, max_size=3))


@given(
    plain_items,
    st.none() | st.sampled_from(graphs.MODES) | st.sets(st.sampled_from(graphs.MODES), max_size=2),
    st.none() | st.integers(1, 6),
    st.none()
    | st.sampled_from(("", *graphs.DS_IDS))
    | st.sets(st.sampled_from(graphs.DS_IDS), max_size=2),
    st.integers(0, 8),
)
def test_current_items(
    sides: Sides, items: list[Any], modes: Any, epoch: Any, ds_id: Any, total: int
) -> None:
    def program(lib: Any) -> Any:
        def make(item: Any) -> Any:
            if isinstance(item, Item):
                return lib.op.numpyop.NumpyOp(
                    item.reads, item.writes, mode=item.mode, ds_id=item.ds_id
                )
            return item

        made, places = graphs.built(lib, items, make)
        found = lib.schedule.get_current_items(made, modes, epoch, ds_id)
        mode = modes if isinstance(modes, str) else None
        one_id = ds_id if isinstance(ds_id, str) else None
        return {
            "items": [places.get(id(item), item) for item in found],
            "signature epochs": lib.schedule.get_signature_epochs(made, total, mode, one_id),
        }

    sides.agree(program)


@given(
    st.integers(0, 200),
    st.integers(1, 40),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 1e-4),
    st.integers(1, 20),
    st.integers(1, 4),
    st.booleans(),
)
def test_cosine_decay(
    sides: Sides,
    time: int,
    cycle_length: int,
    init_lr: float,
    min_lr: float,
    start: int,
    cycle_multiplier: int,
    warmup: bool,
) -> None:
    def program(lib: Any) -> Any:
        return float(
            lib.schedule.cosine_decay(
                time, cycle_length, init_lr, min_lr, start, cycle_multiplier, warmup
            )
        )

    sides.agree(program, rtol=1e-9)


@pytest.mark.parametrize("cycle_multiplier", [1, 2, 3])
def test_cosine_decay_of_a_whole_training(sides: Sides, cycle_multiplier: int) -> None:
    """Every epoch of many: the ends of cycles are where a rounding would show."""

    def program(lib: Any) -> Any:
        return [
            float(
                lib.schedule.cosine_decay(
                    time, cycle_length=10, init_lr=0.1, cycle_multiplier=cycle_multiplier
                )
            )
            for time in range(1, 500)
        ]

    sides.agree(program, rtol=1e-9)


def test_a_learning_rate_that_decays_while_training(sides: Sides) -> None:
    def program(lib: Any) -> Any:
        model = lib.build(mlp, "sgd", model_name="mlp")
        models = lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                lib.op.tensorop.loss.CrossEntropy(("y", "label"), "loss", from_logits=True),
                models.UpdateOp(model, "loss"),
            ]
        )
        for epoch in range(1, 8):
            for group in model.current_optimizer.param_groups:
                group["lr"] = lib.schedule.cosine_decay(epoch, cycle_length=3, init_lr=0.1)
            steps(network, batches(3, seed=epoch), epoch=epoch)
        return model

    sides.agree(program, rtol=WEIGHTS)


def scheduled(lib: Any, kind: str, first: Any, second: Any) -> Any:
    if kind == "epochs":
        return lib.schedule.EpochScheduler({1: first, 2: None, 4: second})
    return lib.schedule.RepeatScheduler([first, None, second])


@pytest.mark.parametrize(
    ("fw", "kind", "eager"),
    [
        ("torch", "epochs", False),
        ("torch", "turns", False),
        ("tf", "epochs", False),
        ("tf", "turns", True),
    ],
    indirect=["fw"],
)
def test_scheduled_ops(sides: Sides, fw: Any, kind: str, eager: bool) -> None:
    """Another loss, another model, no update at all: what runs depends on the epoch."""
    mean, square, mlp = fw.mean, fw.square, fw.mlp

    def program(lib: Any) -> Any:
        first, second = lib.build(
            lambda: [mlp(), mlp()], ["adam", "sgd"], model_name=["first", "second"]
        )
        ops, models = lib.op.tensorop, lib.op.tensorop.model
        network = lib.Network(
            [
                models.ModelOp(first, "x", "y"),
                scheduled(lib, kind, None, models.ModelOp(second, "x", "y")),
                scheduled(
                    lib,
                    kind,
                    fw.one_hot_loss(lib),
                    ops.LambdaOp(lambda y: mean(square(y)), "y", "loss"),
                ),
                scheduled(
                    lib,
                    kind,
                    models.UpdateOp(first, "loss"),
                    models.UpdateOp(second, "loss"),
                ),
            ]
        )
        told: list[Any] = []
        for epoch in range(1, 7):
            told.append(steps(network, fw.batches(2, seed=epoch), epoch=epoch, eager=eager))
            told.append(steps(network, fw.batches(1), "eval", epoch=epoch, eager=True))
        items = network.get_scheduled_items("train")
        signature = lib.schedule.get_signature_epochs(items, 10, "train")
        return told, first, second, signature, sorted(network.get_loss_keys())

    fw.agree(sides, program)


@pytest.mark.parametrize(
    ("fw", "kind", "merge", "eager"),
    [
        *(("torch", kind, merge, False) for kind in ("epochs", "turns") for merge in (1, 2)),
        ("tf", "epochs", 1, False),
        ("tf", "turns", 1, False),
        ("tf", "epochs", 2, True),
        ("tf", "turns", 2, True),
    ],
    indirect=["fw"],
)
def test_scheduled_optimizers(sides: Sides, fw: Any, kind: str, merge: int, eager: bool) -> None:
    """Where there is none for an epoch, the update is scheduled away too."""

    def program(lib: Any) -> Any:
        model = lib.build(fw.mlp, scheduled(lib, kind, "adam", fw.momentum()), model_name="mlp")
        models = lib.op.tensorop.model
        update = models.UpdateOp(model, "loss", merge_grad=merge)
        network = lib.Network(
            [
                models.ModelOp(model, "x", "y"),
                fw.one_hot_loss(lib),
                scheduled(lib, kind, update, update),
            ]
        )
        told: list[Any] = [type(model.current_optimizer).__name__]
        for epoch in range(1, 7):
            told.append(steps(network, fw.batches(3, seed=epoch), epoch=epoch, eager=eager))
            told.append(type(model.current_optimizer).__name__)
            if model.current_optimizer is not None:
                told.append(fw.momenta(model))
            told.append(steps(network, fw.batches(1), "eval", epoch=epoch, eager=True))
        items = network.get_scheduled_items("train")
        return told, model, lib.schedule.get_signature_epochs(items, 8, "train")

    fw.agree(sides, program)


@pytest.mark.tf
@pytest.mark.parametrize("legacy", [True, False])
def test_a_learning_rate_that_no_graph_holds_on_to(sides: Sides, legacy: bool) -> None:
    """Set from outside, and beside it what an op makes of the epoch that it is told."""
    keras = tf.keras

    def program(lib: Any) -> Any:
        optimizers = keras.optimizers.legacy if legacy else keras.optimizers
        model = lib.build(tf_sides.mlp, lambda: optimizers.Adam(0.1), model_name="mlp")

        class Weighed(lib.op.tensorop.TensorOp):  # type: ignore[misc]
            def forward(self, data: Any, state: Any) -> Any:
                return data / tf.cast(state["epoch"], tf.float32)

        network = tf_sides.trainer(lib, model, Weighed("loss", "loss"))
        results = []
        for epoch in range(1, 6):
            rate = lib.schedule.cosine_decay(epoch, cycle_length=3, init_lr=0.1)
            keras.backend.set_value(model.current_optimizer.learning_rate, rate)
            results.append(steps(network, tf_sides.batches(3, seed=epoch), epoch=epoch))
        return results, model, tf_sides.momenta(model)

    tf_sides.agree(sides, program)


def test_an_optimizer_is_current_before_any_epoch(sides: Sides, fw: Any) -> None:
    def program(lib: Any) -> Any:
        schedule = lib.schedule.EpochScheduler
        model = lib.build(fw.mlp, schedule({2: "adam", 1: "sgd"}), model_name="mlp")
        late = lib.build(fw.mlp, schedule({2: "adam"}), model_name="late")
        return type(model.current_optimizer).__name__, late.current_optimizer

    assert fw.agree(sides, program) == ("SGD", None)


def test_scheduled_postprocessing_and_slicers(sides: Sides, fw: Any) -> None:
    mean = fw.mean

    def program(lib: Any) -> Any:
        numpy_ops = lib.op.numpyop
        network = fw.network_class(lib)(
            [lib.op.tensorop.LambdaOp(lambda x: x * 2 + mean(x), "x", "y")],
            postprocessing=scheduled(
                lib,
                "epochs",
                numpy_ops.LambdaOp(lambda y: y + 1, "y", "y"),
                numpy_ops.LambdaOp(lambda y: y - 1, "y", "y"),
            ),
            slicers=[
                scheduled(
                    lib,
                    "turns",
                    lib.slicer.AxisSlicer(0, slice="x", unslice=["x", "y"]),
                    lib.slicer.AxisSlicer(1, slice="x", unslice=["x", "y"]),
                )
            ],
        )
        batch = {"x": fw.tensor(np.arange(6, dtype="float32").reshape(2, 3))}
        return [steps(network, [batch], "eval", epoch, eager=True) for epoch in range(1, 7)]

    fw.agree(sides, program)
