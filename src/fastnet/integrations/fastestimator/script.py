"""A program run with fastnet in FastEstimator's place."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from fastnet.integrations.fastestimator.swap import install

__all__ = ["run_script"]


def run_script(
    path: str, args: Sequence[str] = (), reseed: bool = False, compile: bool = False
) -> int:
    """Run a program as Python would, swapped.

    Args:
        path: The program: a file, or a folder with a ``__main__.py``.
        args: Its arguments.
        reseed: Whether networks in TensorFlow draw the same random numbers in each opening: see
            `install`.
        compile: Whether its networks compile their steps.

    Returns:
        The status to exit with: 1 if the program failed, which is reported as Python does.

    Raises:
        FileNotFoundError: If there is no such program.
        ModuleNotFoundError: If there is no FastEstimator.
        UnknownVersionError: If it is of a version that fastnet does not know.
        SystemExit: If the program exits.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no program '{path}' to run.")
    install(reseed=reseed, compile=compile)
    sys.argv = [path, *args]
    # what Python itself would put there; a folder's own path is put there by runpy
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isfile(path):
        sys.path.insert(0, folder)
    try:
        runpy.run_path(path, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        # the program's own lines, without those that run it
        while trace is not None and _is_runner(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _is_runner(filename: str) -> bool:
    return filename in (__file__, runpy.__file__) or filename.startswith("<frozen ")
