"""A framework that is not installed is an error that says how to install it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys


class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tensorflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Without())
import fastnet

for find in (
    lambda: fastnet.TorchNetwork,
    lambda: fastnet.TFNetwork,
    lambda: fastnet.Network([]),
):
    try:
        find()
    except ModuleNotFoundError as error:
        print(error.name, error)
"""


def test_the_error_names_the_extra() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    for line, framework, extra in zip(
        ran.stdout.splitlines(),
        ("torch", "tensorflow", "torch"),
        ("torch", "tf", "torch"),
        strict=True,
    ):
        assert line.startswith(f"{framework} fastnet.")
        assert line.endswith(
            f" needs {framework}, which is not installed. Install it by "
            f"`pip install fastnet[{extra}]`."
        )
