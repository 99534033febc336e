"""``python -m fastnet.integrations.fastestimator script.py args…``."""

import sys

from fastnet.cli import main

if __name__ == "__main__":
    sys.exit(main(["run-fastestimator", *sys.argv[1:]]))
