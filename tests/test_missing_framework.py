"""A framework that is not installed is an error that says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys


class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Without())
import fastnet
"""

PROGRAM = f"""{WITHOUT}

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
        [sys.executable, "-c", PROGRAM, "torch", "tensorflow"],
        capture_output=True,
        text=True,
        check=True,
    )
    for line, framework, extra in zip(
        ran.stdout.splitlines(),
        ("torch", "tensorflow", "torch"),
        ("torch", "tf", "torch"),
        strict=True,
    ):
        assert line.startswith(f"{framework} fastnet.")
        assert line.endswith(
            f" needs {framework}, which is not installed. Install it with "
            f"`pip install 'fastnet-runtime[{extra}]'`."
        )


HELP = f"""{WITHOUT}
import fastnet.backend, fastnet.network

for module in (fastnet, fastnet.network, fastnet.backend):
    help(module)
    print("is over")
print(*(name for name in dir(fastnet) if name.endswith("Network")))
print(*(name for name in dir(fastnet.network) if name.endswith("Network")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "there"),
    [
        (["tensorflow", "keras"], ["BaseNetwork Network TorchNetwork"] * 2),
        (["torch"], ["BaseNetwork Network TFNetwork"] * 2),
        (["torch", "tensorflow", "keras"], ["BaseNetwork Network"] * 2),
        ([], ["BaseNetwork Network TFNetwork TorchNetwork"] * 2),
    ],
    ids=["torch alone", "TensorFlow alone", "neither", "both"],
)
def test_help_shows_what_there_is(gone: list[str], there: list[str]) -> None:
    for library in {"torch", "tensorflow"}.difference(gone):
        pytest.importorskip(library)
    ran = subprocess.run(
        [sys.executable, "-c", HELP, *gone], capture_output=True, text=True, check=True
    )
    pages = ran.stdout.split("is over\n")
    assert len(pages) == 4
    for page, name, told in zip(
        pages[:3],
        ("fastnet", "fastnet.network", "fastnet.backend"),
        ("save_checkpoint(", "Network(", "reduce_max("),
        strict=False,
    ):
        lines = [one.strip() for one in page.splitlines()]
        assert lines[0].startswith(f"Help on package {name}")
        assert any(told in one for one in lines)
    assert pages[3].splitlines()[:2] == there
