"""Runs programs with or without the swap, in this fresh process, and pickles their results.

python run_programs.py unswapped|swapped results.pkl program:framework …
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import random
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.integrations.conftest import let_samplers_be_initialised

PROGRAMS = Path(__file__).parent / "programs"


def main(side: str, results: str, *wanted: str) -> None:
    if side == "swapped":
        from fastnet.integrations.fastestimator import install

        install()
    let_old_code_run()
    shuffle_alike()
    sys.path.insert(0, str(PROGRAMS))
    found: dict[str, Any] = {}
    for each in wanted:
        name, framework = each.split(":")
        start_over()
        try:
            with tempfile.TemporaryDirectory() as folder:
                found[each] = importlib.import_module(name).main(framework, folder)
        except Exception:
            found[each] = traceback.format_exc()
    with open(results, "wb") as file:
        pickle.dump(found, file)


def let_old_code_run() -> None:
    """Let FastEstimator 1.7.0 run with a newer torch and a newer Python than it was made for."""
    let_samplers_be_initialised()
    if not hasattr(object, "__getstate__"):
        return
    # From 3.11 on every object has a __getstate__, so that FastEstimator gives its classes none.
    tracing: Any = importlib.import_module("fastestimator.util.traceability_util")
    traceable = tracing.traceable

    def with_state(*args: Any, **kwargs: Any) -> Any:
        decorate = traceable(*args, **kwargs)

        def add_state(cls: type) -> type:
            if cls.__getstate__ is object.__getstate__:  # type: ignore[attr-defined]
                cls.__getstate__ = tracing.__getstate__  # type: ignore[attr-defined]
            decorated: type = decorate(cls)
            return decorated

        return add_state

    tracing.traceable = with_state


def shuffle_alike() -> None:
    """Let the order of samples not depend on how far ahead a thread of tf.data has read them."""
    loader: Any = importlib.import_module("fastestimator.dataset.dataloader")
    loader.random = SimpleNamespace(
        shuffle=lambda items: random.Random(0).shuffle(items), randint=random.randint
    )


def start_over(seed: int = 0) -> None:
    import fastestimator
    import numpy as np
    import tensorflow as tf
    import torch

    fastestimator.fe_build_count = 0
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")  # which FastEstimator's build changes
    tf.keras.utils.set_random_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    # FastEstimator collects garbage at the end of each epoch, which need not look at all of this
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main(*sys.argv[1:])
