"""fastnet in the place of an installed FastEstimator's Network, and of what a Network runs.

    from fastnet.integrations.fastestimator import install

    install()  # everything that FastEstimator runs from now on is fastnet's

or for a program as it is::

    python -m fastnet.integrations.fastestimator script.py --its arguments

Nothing is imported before the program itself imports FastEstimator.
"""

from fastnet.integrations.fastestimator.changes import Changes
from fastnet.integrations.fastestimator.script import run_script
from fastnet.integrations.fastestimator.swap import Swap, install, uninstall
from fastnet.integrations.fastestimator.versions import UnknownVersionError

__all__ = ["Changes", "Swap", "UnknownVersionError", "install", "run_script", "uninstall"]
