"""Runs FastEstimator programs with fastnet's networks and ops.

    from fastnet.integrations.fastestimator import install

    install()  # Networks and ops of FastEstimator are fastnet's from here on.

or for an unchanged program::

    python -m fastnet.integrations.fastestimator script.py --its arguments

Neither imports FastEstimator before the program does.
"""

from fastnet.integrations.fastestimator.changes import Changes
from fastnet.integrations.fastestimator.script import run_script
from fastnet.integrations.fastestimator.swap import Swap, install, uninstall
from fastnet.integrations.fastestimator.versions import UnknownVersionError

__all__ = ["Changes", "Swap", "UnknownVersionError", "install", "run_script", "uninstall"]
