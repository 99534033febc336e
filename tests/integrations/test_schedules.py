"""Schedulers of ops, of optimizers and of plain values; learning rates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integrations import graphs
from tests.integrations.graphs import Item
from tests.integrations.sides import Sides, one_hot_loss, steps

values = st.sampled_from(["a", "b", "c", None])


plain_items = st.one_of(graphs.pops, st.lists(values, max_size=3))


@settings(max_examples=100)
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


def scheduled(lib: Any, kind: str, first: Any, second: Any) -> Any:
    if kind == "epochs":
        return lib.schedule.EpochScheduler({1: first, 2: None, 4: second})
    return lib.schedule.RepeatScheduler([first, None, second])


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
                one_hot_loss(lib),
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

    sides.agree(program)
