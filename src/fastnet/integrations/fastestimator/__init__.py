"""Runs FastEstimator programs with fastnet's networks and ops.

    from fastnet.integrations.fastestimator import install

    install()  # Networks and ops of FastEstimator are fastnet's from here on.

or for an unchanged program::

    python -m fastnet.integrations.fastestimator script.py --its arguments

Neither imports FastEstimator before the program does.
"""

from fastnet.integrations.fastestimator.installation import (
    Changes,
    Installation,
    UnknownVersionError,
    install,
    uninstall,
)
from fastnet.integrations.fastestimator.script import run_script

__all__ = ["Changes", "Installation", "UnknownVersionError", "install", "run_script", "uninstall"]
