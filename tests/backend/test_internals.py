"""No private name of a framework is needed: each program does the same without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from tests.backend.without_names import EVERYTHING, NOTHING, UNASKED, names_of

ROOT = Path(__file__).parents[2]


@lru_cache
def outcomes(framework: str) -> dict[str, str | None]:
    """Run the programs of a framework without each of its private names."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("FASTNET_PUBLIC_ONLY", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.backend.without_names", framework],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("name", [NOTHING, *names_of("torch"), EVERYTHING])
def test_torch_without(name: str) -> None:
    assert outcomes("torch")[name] is None


# without these a model of Keras 2 cannot be copied, and the error says why
REFUSED = {"_index_dict", "_var_key"}
# what only older optimizers of Keras 2, or those of compiled steps, and models that a program has
# compiled, are asked for
OLDER = {"_create_all_weights", "_handle_data", "_hyper", "_is_compiled", "_slots", "_unique_id"}
# what only several workers ask for
OF_WORKERS = {"_collective_keys", "_instance_key_table"}
# what only one Keras is asked for
OF_KERAS_3 = {
    "_seed_generators",
    "_trainable_variables",
    "keras.src.random.seed_generator.global_seed_generator",
    "keras.src.utils.naming.reset_uids",
}
OF_KERAS_2 = REFUSED | {
    "_built",
    "_compute_current_learning_rate",
    "_current_learning_rate",
    "_generator",
    "_maybe_init",
    "_random_generator",
    "_rng_type",
    "_trainable_weights",
}


@pytest.mark.tf
@pytest.mark.parametrize("name", [NOTHING, *names_of("tf"), EVERYTHING])
def test_tensorflow_without(name: str) -> None:
    keras_2 = pytest.importorskip("keras").__version__.startswith("2.")
    outcome = outcomes("tf")[name]
    if name in OLDER | OF_WORKERS | (OF_KERAS_3 if keras_2 else OF_KERAS_2):
        assert outcome == UNASKED
    elif keras_2 and name in (EVERYTHING, *REFUSED):
        assert "fastnet needs '_" in str(outcome)
    else:
        assert outcome is None
