"""`python -m fastnet …`."""

import sys

from fastnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
