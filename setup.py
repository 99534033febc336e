"""Builds the compiled kernel; everything declarative is in pyproject.toml.

Environment switches, each off unless set to 1:

    FASTNET_DEBUG     no optimisation, debug symbols, bounds and None checks
    FASTNET_SANITIZE  address and undefined-behaviour sanitizers
    FASTNET_COVERAGE  line tracing, for the Cython coverage plugin
    FASTNET_ANNOTATE  an HTML page beside each generated C file: yellow lines call into Python

Each combination builds under a folder of its own, `build/<switches>` or `build/release`, so that
switching never mixes object files.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# With --no-build-isolation pip does not read the version that pyproject.toml requires.
if tuple(map(int, setuptools.__version__.split(".")[:3])) < (77, 0, 3):
    sys.exit(
        f"fastnet needs setuptools 77.0.3 or newer, but {setuptools.__version__} is installed. "
        "Run: pip install --upgrade setuptools"
    )

SWITCHES = ("DEBUG", "SANITIZE", "COVERAGE", "ANNOTATE")
ON = {name for name in SWITCHES if os.environ.get(f"FASTNET_{name}", "0") not in ("", "0")}
VARIANT = "-".join(name.lower() for name in SWITCHES if name in ON) or "release"
BUILD = Path("build") / VARIANT
CORES = os.cpu_count() or 1

# Shared by every module of the kernel; a module may narrow them in its own first lines.
DIRECTIVES = {
    "language_level": 3,
    "freethreading_compatible": True,
    "boundscheck": "DEBUG" in ON,
    "wraparound": False,
    "nonecheck": "DEBUG" in ON,
    "embedsignature": True,
    "embedsignature.format": "python",
    "linetrace": "COVERAGE" in ON,
}


def compile_args() -> list[str]:
    """Return the compiler's flags for the switches that are on."""
    if sys.platform == "win32":
        return ["/Od", "/Zi"] if "DEBUG" in ON else ["/O2"]
    args = ["-O0", "-g"] if "DEBUG" in ON else ["-O3", "-g0"]
    if "SANITIZE" in ON:
        args = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
    return args


def extensions() -> list[Extension]:
    """Return one extension for each `src/fastnet/_*.pyx`."""
    return [
        Extension(
            f"fastnet.{source.stem}",
            [source.as_posix()],
            extra_compile_args=compile_args(),
            extra_link_args=["-fsanitize=address,undefined"] if "SANITIZE" in ON else [],
            define_macros=[("CYTHON_TRACE_NOGIL", "1")] if "COVERAGE" in ON else [],
        )
        for source in sorted(Path("src/fastnet").glob("_*.pyx"))
    ]


class BuildKernel(build_ext):
    """Translates the .pyx files when extensions are really built, and into the build folder.

    Calling `cythonize` at module level would run it for `sdist` and `egg_info` too, and would put
    C files beside the sources.
    """

    def finalize_options(self) -> None:
        """Let an editable install build where `build_ext --inplace` does.

        It would take a temporary folder, and compile again what lies built here.
        """
        super().finalize_options()
        self.parallel = self.parallel or CORES
        if self.editable_mode:
            folder = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
            self.build_lib = str(BUILD / f"lib.{folder}")
            self.build_temp = str(BUILD / f"temp.{folder}")

    def build_extensions(self) -> None:
        """Translate each extension's source, then compile what came out."""
        from Cython.Build import cythonize

        translated = cythonize(
            self.extensions,
            annotate="ANNOTATE" in ON,
            build_dir=self.build_temp,
            compiler_directives=DIRECTIVES,
            force=self.force,
            nthreads=CORES,
            quiet=not self.verbose,
        )
        for extension, made in zip(self.extensions, translated, strict=True):
            extension.sources, extension.depends = made.sources, made.depends
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        """Copy what was built, for --inplace."""
        # Only newer files are copied otherwise, and a switch back must bring back an older one.
        self.force = True
        super().copy_extensions_to_source()


# The processes that translate may import this file.
if __name__ == "__main__":
    setup(
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildKernel},
        options={"build": {"build_base": str(BUILD)}},
    )
