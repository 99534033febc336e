"""Save torch models and optimizers to files, and load them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastnet
from fastnet.backend import get_lr, load_model, save_model, set_lr
from tests.backend.saving import SavesOnlyWhatItCan
from tests.network.programs import batches, mlp, same_weights, supervised, weights

OPTIMIZERS = {
    "adam": "adam",
    "rmsprop": "rmsprop",
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.05, weight_decay=0.1),
}


def build(optimizer: Any = "adam", make: Any = mlp, **settings: Any) -> Any:
    return fastnet.build(make, optimizer, model_name="net", **settings)


def steps(network: Any, data: Any) -> None:
    with network(mode="train", epoch=1):
        for batch in data:
            network.run_step(batch)


def saved(folder: Path, optimizer: Any = "adam", **kwargs: Any) -> tuple[Any, str]:
    """Return a model that was trained, and the file that its weights are in."""
    model = build(optimizer)
    steps(fastnet.Network(supervised(model)), batches(3))
    return model, save_model(model, folder, **{"save_optimizer": True, **kwargs})


def memory(model: Any) -> dict[Any, dict[str, torch.Tensor]]:
    """Copy the state of an optimizer by parameter."""
    state = model.current_optimizer.state_dict()["state"]
    return {
        place: {name: torch.as_tensor(value).clone() for name, value in values.items()}
        for place, values in state.items()
    }


def same_memory(one: Any, two: Any) -> bool:
    return one.keys() == two.keys() and all(
        values.keys() == two[place].keys()
        and all(torch.equal(value, two[place][name]) for name, value in values.items())
        for place, values in one.items()
    )


class TestRoundTrip:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @pytest.mark.parametrize("stepped", [False, True], ids=["fresh", "stepped"])
    def test_training_goes_on(self, tmp_path: Path, optimizer: str, stepped: bool) -> None:
        data = batches(6)
        model, other = (build(OPTIMIZERS[optimizer]) for _ in range(2))
        network, resumed = (fastnet.Network(supervised(each)) for each in (model, other))
        if stepped:
            steps(resumed, batches(2, seed=5))
        steps(network, data[:3])
        path = save_model(model, tmp_path, save_optimizer=True)
        before = weights(model)
        steps(network, data[3:])
        assert not same_weights(other, before)
        load_model(other, path, load_optimizer=True)
        assert same_weights(other, before)
        steps(resumed, data[3:])
        assert same_weights(model, other)
        assert same_memory(memory(model), memory(other))

    def test_of_a_rate_that_was_set(self, tmp_path: Path) -> None:
        model, other = build(OPTIMIZERS["adamw"]), build(OPTIMIZERS["adamw"])
        set_lr(model, 0.5, weight_decay=0.25)
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        assert get_lr(other) == 0.5
        assert other.current_optimizer.param_groups[0]["weight_decay"] == 0.25

    def test_weights_alone(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        other = build()
        load_model(other, Path(path))
        assert same_weights(model, other)
        assert memory(other) == {}

    def test_as_weights_path_of_build(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        assert same_weights(model, build(weights_path=path))


class TestFiles:
    def test_another_name(self, tmp_path: Path) -> None:
        folder = tmp_path / "deep" / "er"
        path = save_model(build(), str(folder), "other", save_optimizer=True)
        assert path == str(folder / "other.pt")
        assert sorted(os.listdir(folder)) == ["other.pt", "other_opt.pt"]

    def test_in_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        path = save_model(build(), "")
        assert os.path.samefile(path, tmp_path / "net.pt")

    def test_are_those_of_torch(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        assert same_weights(model, torch.load(path, weights_only=True))
        state = torch.load(tmp_path / "net_opt.pt", weights_only=True)
        assert same_memory(state["state"], memory(model))


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


class TestErrors(SavesOnlyWhatItCan):
    """A load that fails leaves the model and its optimizer as they were."""

    build = staticmethod(build)
    saved = staticmethod(saved)
    mlp = staticmethod(mlp)
    same_weights = staticmethod(same_weights)

    def refused(
        self,
        path: str,
        kind: type[Exception],
        *parts: str,
        model: Any = None,
        optimizer: bool = True,
    ) -> None:
        """Expect an error whose text has all parts."""
        model = build() if model is None else model
        before, state = weights(model), memory(model)
        with pytest.raises(kind) as caught:
            load_model(model, path, load_optimizer=optimizer)
        assert all(part in str(caught.value) for part in parts)
        assert same_weights(model, before)
        assert same_memory(memory(model), state)

    @pytest.mark.parametrize("optimizer", [False, True])
    def test_no_weights(self, tmp_path: Path, optimizer: bool) -> None:
        path = str(tmp_path / "none.pt")
        self.refused(path, ValueError, "There is no weights file", path, optimizer=optimizer)

    def test_no_path(self) -> None:
        self.refused(3, ValueError, "A weights path is a string, not 3 of type int.")  # type: ignore[arg-type]

    def test_no_optimizer_file(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path, save_optimizer=False)
        beside = str(tmp_path / "net_opt.pt")
        self.refused(path, AssertionError, "There is no optimizer file", beside, "save_optimizer=")

    @pytest.mark.parametrize("name", ["net.pt", "net_opt.pt"])
    def test_nothing_is_executed(self, tmp_path: Path, name: str) -> None:
        marker = tmp_path / "marker"
        _, path = saved(tmp_path)
        torch.save({"state": Hostile(marker), "param_groups": []}, tmp_path / name)
        self.refused(path, ValueError, str(tmp_path / name), "would have to be executed")
        assert not marker.exists()

    @pytest.mark.parametrize("name", ["net.pt", "net_opt.pt"])
    @pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", None])
    def test_damaged(self, tmp_path: Path, name: str, content: bytes | None) -> None:
        _, path = saved(tmp_path)
        damaged = tmp_path / name
        damaged.write_bytes(damaged.read_bytes()[:-300] if content is None else content)
        self.refused(path, ValueError, f"file '{damaged}' is damaged")

    @pytest.mark.parametrize("name", ["net.pt", "net_opt.pt"])
    def test_flipped_bytes_never_change_values(self, tmp_path: Path, name: str) -> None:
        """torch.load itself does not compare the checksums of arrays."""
        model, path = saved(tmp_path)
        good, refused = (tmp_path / name).read_bytes(), 0
        other, source = build(), random.Random(0)
        for _ in range(60):
            bad = bytearray(good)
            bad[source.randrange(len(bad))] ^= 1 << source.randrange(8)
            (tmp_path / name).write_bytes(bad)
            try:
                load_model(other, path, load_optimizer=True)
            except ValueError:
                refused += 1
                continue
            # Nothing reads the padding of an archive, or the dates in it.
            assert same_weights(model, other)
            assert same_memory(memory(other), memory(model))
        assert refused > 30

    def test_another_optimizer(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path)
        self.refused(
            path, ValueError, "does not fit the optimizer, SGD: it is of Adam", model=build("sgd")
        )

    def test_another_optimizer_in_a_file_of_torch(self, tmp_path: Path) -> None:
        """A `state_dict` of torch does not name its class, but the settings differ."""
        _, path = saved(tmp_path)
        torch.save(build("adam").current_optimizer.state_dict(), tmp_path / "net_opt.pt")
        self.refused(
            path, ValueError, "its settings are", "'amsgrad'", "'momentum'", model=build("sgd")
        )

    def test_an_optimizer_of_another_model(self, tmp_path: Path) -> None:
        _, path = saved(tmp_path)
        self.refused(
            path,
            ValueError,
            "its groups have [4] parameters, where the model's have [2]",
            model=build(make=lambda: nn.Linear(16, 4)),
        )

    @pytest.mark.parametrize(
        "held",
        [
            [1],
            {"a": 1},
            {"state": {}},
            {"state": {}, "param_groups": 3},
            {"state": {}, "param_groups": [3]},
            {"state": {}, "param_groups": [{"params": 3}]},
        ],
        ids=str,
    )
    def test_no_state_of_an_optimizer(self, tmp_path: Path, held: Any) -> None:
        _, path = saved(tmp_path)
        torch.save(held, tmp_path / "net_opt.pt")
        self.refused(path, ValueError, str(tmp_path / "net_opt.pt"), "does not fit the optimizer")

    def test_optimizer_state_of_other_shapes(self, tmp_path: Path) -> None:
        """torch itself would take it, and fail in the next step."""
        _, path = saved(tmp_path)
        other = build(make=lambda: nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 4)))
        for parameter in other.parameters():
            parameter.grad = torch.ones_like(parameter)
        other.current_optimizer.step()
        torch.save(other.current_optimizer.state_dict(), tmp_path / "net_opt.pt")
        self.refused(
            path, ValueError, "'exp_avg' has the shape (2, 8) for a parameter of the shape (32, 16)"
        )

    def test_the_architecture(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="architecture of model 'net' cannot be saved"):
            save_model(build(), tmp_path, save_architecture=True)
        assert os.listdir(tmp_path) == []

    def test_quantized_weights(self, tmp_path: Path) -> None:
        model, path = saved(tmp_path)
        state = model.state_dict()
        last = list(state)[-1]
        state[last] = torch.quantize_per_tensor(state[last], 0.1, 0, torch.qint8)
        torch.save(state, path)
        self.refused(path, ValueError, path, "does not fit the model, Sequential", last)

    def test_a_module_that_refuses(self, tmp_path: Path) -> None:
        """The weights and the optimizer state that were loaded before are restored."""

        class Picky(nn.Linear):
            def _load_from_state_dict(self, state: Any, *args: Any) -> None:
                if state["2.weight"].sum() > 0:
                    raise RuntimeError("I will not")
                super()._load_from_state_dict(state, *args)

        def make() -> Any:
            return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), Picky(32, 4))

        model = build(make=make)
        with torch.no_grad():
            model[2].weight.fill_(1)
        steps(fastnet.Network(supervised(model)), batches(2))
        path = save_model(model, tmp_path, save_optimizer=True)
        self.refused(path, ValueError, path, "I will not", model=build(make=make))


def scaled(scale: float) -> Any:
    model = build()
    model.current_optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return model


class TestScalers:
    def test_go_with_their_optimizers(self, tmp_path: Path) -> None:
        model, other = scaled(512.0), scaled(2.0)
        scaler = model.current_optimizer.scaler
        # an overflow halves it
        model[0].weight.grad = torch.full_like(model[0].weight, float("inf"))
        scaler.scale(torch.ones(()))
        scaler.unscale_(model.current_optimizer)
        scaler.step(model.current_optimizer)
        scaler.update()
        load_model(other, save_model(model, tmp_path, save_optimizer=True), load_optimizer=True)
        assert other.current_optimizer.scaler.state_dict() == scaler.state_dict()
        assert other.current_optimizer.scaler.scale(torch.ones(())).item() == 256

    def test_a_file_with_a_scale_fits_where_none_is_scaled(self, tmp_path: Path) -> None:
        model = build()
        load_model(
            model, save_model(scaled(8.0), tmp_path, save_optimizer=True), load_optimizer=True
        )
        assert model.current_optimizer.scaler is None

    def test_torch_reads_the_file_as_an_optimizers(self, tmp_path: Path) -> None:
        model, _ = saved(tmp_path)
        twin = mlp()
        optimizer = torch.optim.Adam(twin.parameters())
        optimizer.load_state_dict(torch.load(tmp_path / "net_opt.pt", weights_only=True))
        assert same_memory(optimizer.state_dict()["state"], memory(model))


class TestScheduled:
    """Each optimizer of a schedule gets its own state, whichever is in force here and there."""

    def make(self) -> Any:
        from fastnet.schedule import EpochScheduler

        return build(EpochScheduler({1: "adam", 3: OPTIMIZERS["momentum"], 5: None}))

    @pytest.mark.parametrize("last", [1, 3])
    @pytest.mark.parametrize("first", [1, 3])
    def test_all_of_them(self, tmp_path: Path, last: int, first: int) -> None:
        model = self.make()
        network = fastnet.Network(supervised(model))
        for epoch in (1, 3, last):
            with network(mode="train", epoch=epoch):
                for batch in batches(2, seed=epoch):
                    network.run_step(batch)
        path = save_model(model, tmp_path, save_optimizer=True)
        other = self.make()
        load_model(other, path, load_optimizer=True)
        with fastnet.Network(supervised(other))(mode="train", epoch=first):
            pass
        for one, two in zip(optimizers(model), optimizers(other), strict=True):
            # by torch's own account
            one, two = one.state_dict(), two.state_dict()
            assert one["param_groups"] == two["param_groups"]
            assert one["state"]
            assert same_memory(one["state"], two["state"])

    def test_into_another_schedule(self, tmp_path: Path) -> None:
        from fastnet.schedule import EpochScheduler

        path = save_model(self.make(), tmp_path, save_optimizer=True)
        other = build(EpochScheduler({1: "adam", 2: "sgd", 3: "sgd"}))
        with pytest.raises(ValueError, match="of a schedule of 2 optimizers, where the model's"):
            load_model(other, path, load_optimizer=True)


def optimizers(model: Any) -> list[Any]:
    return [one for one in model.optimizer.get_all_values() if one is not None]
