"""The programs of examples/programs, and the same texts with FastEstimator's name in their imports.

Each package runs all of them in a process of its own, in which the other one is never imported.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.integrations.sides import LOSS, WEIGHTS
from tests.subprocesses import run_python

pytest.importorskip("sklearn")

pytestmark = [
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow"),
    pytest.mark.slow,
]

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "common")
FRAMEWORKS = ["torch", "tf"]

# What they have in common beyond the loss: fastnet's sums are FastEstimator's, bit for bit.
EXACT_WEIGHTS = {(name, framework) for name in NAMES for framework in FRAMEWORKS} - {
    # the collected gradients of the layers are divided in another order
    ("volumes", "tf"),
}

RUN = """
import importlib, sys
library, other, folder, *names = sys.argv[1:]
sys.path.insert(0, folder)

def run(name, framework, path):
    given = ["--framework", framework, "--epochs", "3", "--steps", "4", "--save", path]
    importlib.import_module(name).run(given)

for framework in ("torch", "tf"):
    for name in names:
        run(name, framework, f"{folder}/{name}-{framework}.npz")
assert library in sys.modules
assert other not in sys.modules
"""

Saved = dict[str, np.ndarray]
Outcome = Callable[[str, str], Saved]


def run_all(library: str, other: str, folder: Path) -> None:
    folder.mkdir()
    for path in PROGRAMS.glob("*.py"):
        text = path.read_text(encoding="utf-8").replace("fastnet", library)
        (folder / path.name).write_text(text, encoding="utf-8")
    # sums that do not depend on how work is shared out
    command = ("-c", RUN, library, other, folder, *NAMES)
    done = run_python(*command, TF_NUM_INTRAOP_THREADS="1")
    assert done.returncode == 0, f"{library}: {done.stderr}"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a program has saved, in a package."""
    folder = tmp_path_factory.mktemp("programs")
    run_all("fastestimator", "fastnet", folder / "fastestimator")
    run_all("fastnet", "fastestimator", folder / "fastnet")

    def read(library: str, name: str) -> Saved:
        with np.load(folder / library / f"{name}.npz") as saved:
            return dict(saved)

    return read


def compare(actual: Saved, expected: Saved, exact_weights: bool) -> None:
    """Compare the losses of every step, the figures and the final weights."""
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert actual[key].shape == value.shape, key
        if key.startswith("weights/"):
            tolerance = (0.0, 0.0) if exact_weights else (WEIGHTS, 1e-7)
        else:
            tolerance = (LOSS, 1e-7)  # a loss that is a difference can be next to 0
        rtol, atol = tolerance
        np.testing.assert_allclose(actual[key], value, rtol=rtol, atol=atol, err_msg=key)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_comes_of_both(outcome: Outcome, name: str, framework: str) -> None:
    saved = f"{name}-{framework}"
    expected, actual = outcome("fastestimator", saved), outcome("fastnet", saved)
    losses = [key for key in expected if key.startswith("losses/")]
    assert losses
    assert all(len(expected[key]) == 12 for key in losses)
    if saved == "classifier-tf":
        # It drops at random, other numbers in a later epoch (docs/migration.md).
        assert losses == ["losses/loss"]
        np.testing.assert_array_equal(actual[losses[0]][:4], expected[losses[0]][:4])
        return
    compare(actual, expected, exact_weights=(name, framework) in EXACT_WEIGHTS)
