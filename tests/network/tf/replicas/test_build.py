"""Models that `build` mirrors on several devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import fastnet
from fastnet.network import TFNetwork
from fastnet.schedule import EpochScheduler
from tests.network.tf.replicas.devices import (
    ALL_THREE,
    assert_same_weights,
    copies_of,
    keras,
    under,
)
from tests.network.tf.replicas.programs import (
    STEPS,
    adam,
    by_hand,
    mlp,
    regression,
    same_model,
    sgd,
    square_error,
)

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.own_process]


@pytest.fixture
def as_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let two of the devices pass for GPUs."""
    found = tf.config.list_logical_devices("CPU")[:2]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: list(found))
    yield
    tf.distribute.experimental_set_strategy(None)


def optimizer_variables(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class TestBuild:
    @pytest.mark.parametrize("mixed", [False, True])
    def test_models_are_mirrored(
        self, as_gpus: None, mixed: bool, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def make() -> Any:
            strategies.append(tf.distribute.has_strategy())
            model = mlp()
            names.append([layer.name for layer in model.layers])
            return model

        strategies: list[bool] = []
        names: list[list[str]] = []
        keras.backend.clear_session()
        model = fastnet.build(make, adam, mixed_precision=mixed)
        strategy = tf.distribute.get_strategy()
        assert type(strategy) is tf.distribute.MirroredStrategy
        assert [device[-5:] for device in strategy.extended.worker_devices] == ["CPU:0", "CPU:1"]
        assert strategies == [False, True]
        assert names[0] == names[1]
        for variable in [*model.weights, *optimizer_variables(model.optimizer)]:
            assert len(copies_of(variable)) == 2
        assert capfd.readouterr() == ("", "")
        x, y = STEPS[0]
        network = TFNetwork(regression(model))
        twin = same_model(model, mlp)
        with network(mode="train", epoch=1):
            x_parts, y_parts = (
                strategy.experimental_distribute_values_from_function(
                    lambda context, value=value: tf.split(value, 2)[
                        context.replica_id_in_sync_group
                    ]
                )
                for value in (x, y)
            )
            network.run_step({"x": x_parts, "y": y_parts})
        # another model is made once, where the strategy is there already
        fastnet.build(make, "sgd")
        assert strategies == [False, True, True]
        assert tf.distribute.get_strategy() is strategy
        tf.distribute.experimental_set_strategy(None)
        by_hand(twin, adam(), lambda x, y: square_error(twin, x, y), [(x, y)])
        assert_same_weights(model, twin, *([0.02, 0.002] if mixed else []))

    def test_several_models_and_scheduled_optimizers(self, as_gpus: None) -> None:
        scheduler = EpochScheduler({1: sgd, 2: None, 3: adam})
        first, second = fastnet.build(lambda: [mlp(), mlp()], [scheduler, "adam"])
        for optimizer in (first.optimizer.get_current_value(3), second.optimizer):
            assert all(len(copies_of(one)) == 2 for one in optimizer_variables(optimizer))
        assert all(len(copies_of(one)) == 2 for one in [*first.weights, *second.weights])

    def test_weights_from_a_file(self, as_gpus: None, tmp_path: Any) -> None:
        source = mlp()
        path = str(tmp_path / "model.weights.h5")
        source.save_weights(path)
        model = fastnet.build(mlp, "sgd", weights_path=path)
        assert_same_weights(model, source)
        assert all(len(copies_of(one)) == 2 for one in model.weights)

    def test_a_strategy_of_the_programs_own_stays(self, as_gpus: None) -> None:
        def make() -> Any:
            made.append(tf.distribute.get_strategy())
            return mlp()

        made: list[Any] = []
        with under(ALL_THREE):
            model = fastnet.build(make, "sgd")
            assert tf.distribute.get_strategy() is ALL_THREE
        with ALL_THREE.scope():
            other = fastnet.build(make, "sgd")
        assert made == [ALL_THREE] * 2
        assert not tf.distribute.has_strategy()
        for variable in [*model.weights, *other.weights]:
            assert len(copies_of(variable)) == 3

    def test_one_gpu_needs_no_strategy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = tf.config.list_logical_devices("CPU")[:1]
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: list(found))
        made: list[Any] = []
        model = fastnet.build(lambda: made.append(mlp()) or made[-1], "sgd")
        assert not tf.distribute.has_strategy()
        assert made == [model]

    def test_a_model_that_cannot_be_made_leaves_no_strategy(self, as_gpus: None) -> None:
        def make() -> Any:
            if tf.distribute.has_strategy():
                raise OSError("out of memory")
            return mlp()

        with pytest.raises(OSError, match="out") as caught:
            fastnet.build(make, "sgd")
        assert str(caught.value) == "out of memory"
        assert not tf.distribute.has_strategy()
