"""Runs a FastEstimator program with fastnet."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from fastnet.integrations.fastestimator.installation import install

__all__ = ["run_script"]


def run_script(path: str, args: Sequence[str] = (), compile: bool = False) -> int:
    """Call `install` and run a program as Python would.

    Args:
        path: The program: a file, or a folder with a ``__main__.py``.
        args: The arguments of the program.
        compile: Whether networks compile their steps.

    Returns:
        The exit status: 1 if the program raised an exception, whose traceback is printed.

    Raises:
        FileNotFoundError: If the program does not exist.
        ModuleNotFoundError: If FastEstimator is not installed.
        UnknownVersionError: If fastnet does not support its version.
        SystemExit: If the program exits.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no program '{path}' to run.")
    install(compile=compile)
    sys.argv = [path, *args]
    # Python adds the folder of a script. For a folder with a __main__.py, runpy adds its path.
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isfile(path):
        sys.path.insert(0, folder)
    try:
        runpy.run_path(path, run_name="__main__")
    except Exception as error:
        traceback = error.__traceback__
        # Print only the frames of the program.
        while traceback is not None and _is_runner(traceback.tb_frame.f_code.co_filename):
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return 1
    return 0


def _is_runner(filename: str) -> bool:
    return filename in (__file__, runpy.__file__) or filename.startswith("<frozen ")
