"""The programs of examples/programs: each learns what it is there for, in either framework."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from tests.subprocesses import run_python

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "common")

FRAMEWORKS = ["torch", pytest.param("tf", marks=pytest.mark.tf)]
PACKAGES = {"torch": "torch", "tf": "tensorflow"}
torch_first = pytest.mark.parametrize(
    "framework", ["torch", pytest.param("tf", marks=[pytest.mark.tf, pytest.mark.slow])]
)

# What a program saves: "losses/…" with a value for each step, "figures/…", "weights/…".
Saved = dict[str, np.ndarray]
Run = Callable[..., Saved]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a program in this process, and read what it saves."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    threads = []

    def run(name: str, framework: str, **options: int) -> Saved:
        package = pytest.importorskip(PACKAGES[framework])
        if framework == "torch":
            threads.append(package.get_num_threads())
        path = tmp_path / f"{name}.npz"
        given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        module = importlib.import_module(name)
        module.run(["--framework", framework, "--save", str(path), *given])
        with np.load(path) as saved:
            return dict(saved)

    yield run
    if threads:
        importlib.import_module("torch").set_num_threads(threads[0])


def figures(saved: Saved) -> dict[str, float]:
    return {
        key.partition("/")[2]: float(value)
        for key, value in saved.items()
        if key.startswith("figures/")
    }


def test_there_are_programs() -> None:
    assert NAMES == ["adversarial", "autoencoder", "classifier", "gan", "growing", "volumes"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
class TestLearning:
    def test_the_classifier_reads(self, run: Run, framework: str) -> None:
        saved = run("classifier", framework, epochs=3)
        assert len(saved["losses/loss"]) == 3 * 43  # 1,347 images, 32 a step
        assert saved["losses/loss"][0] == pytest.approx(np.log(10), abs=0.6)  # knows nothing
        assert saved["losses/loss"][-20:].mean() < 0.3
        assert figures(saved)["accuracy"] > 0.93

    def test_the_autoencoder_beats_the_mean_image(self, run: Run, framework: str) -> None:
        found = figures(run("autoencoder", framework, epochs=8))
        assert found["code_length"] == 10
        # scikit-learn's pixels are from 0 to 16; the spread of the held-out ones about the mean
        assert found["error_of_mean_image"] == pytest.approx(0.074, abs=0.004)
        assert found["error"] < 0.8 * found["error_of_mean_image"]

    def test_the_generator_comes_nearer_to_real_images(self, run: Run, framework: str) -> None:
        early = run("gan", framework, epochs=1, steps=1)
        late = run("gan", framework, epochs=12)
        for model in ("generator", "discriminator"):
            assert np.isfinite(late[f"losses/{model}_loss"]).all()
            # it drew the same weights, and so began in the same place
            assert late[f"losses/{model}_loss"][0] == early[f"losses/{model}_loss"][0]
            weights = [key for key in late if key.startswith(f"weights/{model}/")]
            assert len(weights) == 6
            for key in weights:
                assert np.abs(late[key] - early[key]).max() > 0.01, key
        found = figures(late)
        assert found["distance_of_means_after"] < 0.75 * found["distance_of_means_before"]
        assert found["distance_of_variances_after"] < 0.75 * found["distance_of_variances_before"]

    def test_the_defended_network_stands_attacks_better(self, run: Run, framework: str) -> None:
        found = figures(run("adversarial", framework, epochs=5))
        assert found["plain_clean"] > 0.88
        assert found["defended_clean"] > 0.88
        assert found["plain_attacked"] < 0.5  # it is an attack
        assert found["defended_attacked"] > found["plain_attacked"] + 0.15
        assert found["defended_gradient"] < 0.9 * found["plain_gradient"]

    def test_layers_tell_more_than_brightness(self, run: Run, framework: str) -> None:
        saved = run("volumes", framework, epochs=3)
        found = figures(saved)
        assert len(saved["losses/loss"]) == 3 * 16  # a loss for each batch, not for each layer
        assert 0.3 < found["overlap_of_threshold"] < 0.5
        assert found["overlap"] > found["overlap_of_threshold"] + 0.25

    def test_the_network_grows(self, run: Run, framework: str) -> None:
        found = figures(run("growing", framework, epochs=6))
        moved = {
            name: [found[f"{name}_moved_{epoch}"] > 0 for epoch in range(1, 7)]
            for name in ("coarse", "fine")
        }
        assert moved["coarse"] == [True, True, True, True, False, False]
        assert moved["fine"] == [False, False, True, True, True, True]
        assert found["accuracy_6"] > 0.85
        assert found["accuracy_6"] > found["accuracy_2"] + 0.05


@torch_first
def test_a_seed_decides_everything(run: Run, framework: str) -> None:
    first, again = (run("classifier", framework, epochs=1, steps=3) for _ in range(2))
    other = run("classifier", framework, epochs=1, steps=3, seed=1)
    assert first.keys() == again.keys() == other.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(again[key], value, err_msg=key)
    losses = [key for key in first if key.startswith("losses/")]
    assert not any(np.array_equal(first[key], other[key]) for key in losses)


@torch_first
def test_as_a_user_runs_it(framework: str) -> None:
    pytest.importorskip(PACKAGES[framework])
    arguments = ["--framework", framework, "--epochs", "2", "--steps", "2", "--json"]
    finished = run_python(PROGRAMS / "gan.py", *arguments)
    assert finished.returncode == 0, finished.stderr
    # ops that call fastnet.backend can be read by AutoGraph, which warns of what it cannot read
    assert "AutoGraph" not in finished.stderr
    printed = json.loads(finished.stdout)
    assert {key: len(values) for key, values in printed["losses"].items()} == {
        "generator_loss": 4,
        "discriminator_loss": 4,
    }
    assert printed["figures"].keys() == {
        f"distance_of_{what}_{when}"
        for what in ("means", "variances")
        for when in ("before", "after")
    }
    assert [len(norms) for norms in printed["norms"].values()] == [6, 6]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "arguments", [["--epochs", "0"], ["--steps", "0"], ["--seed", "x"], ["--framework", "jax"]]
)
def test_arguments_that_are_refused(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(name).run(arguments)
    assert caught.value.code == 2
