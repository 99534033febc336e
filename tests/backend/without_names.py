"""Programs that run with one private name of a framework after the other out of reach.

Run as a program with the name of a framework, it prints a line of JSON for each name: what failed,
or null. Each runs in a process forked off after the framework was imported, and before it has
started to compute.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

BACKEND = Path(__file__).parents[2] / "src" / "fastnet" / "backend"
FILES = {
    "torch": ("torch/_internals.py",),
    "tf": ("tf/_internals.py", "tf/_keras_internals.py"),
}
# with what they would import later, once in each process
PACKAGES = {"torch": ("torch", "torch._dynamo"), "tf": ("tensorflow", "keras", "h5py")}
NOTHING, EVERYTHING = "no name", "all names"
UNASKED = "no program has asked for it"


def names_of(framework: str) -> list[str]:
    """List the private names that the backend asks for, as they are written there."""
    found = {}
    for file in FILES[framework]:
        path = BACKEND / file
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = {"look_up": 0, "read": 1}.get(node.func.id)
                if place is not None:
                    name = node.args[place]
                    assert isinstance(name, ast.Constant), f"{file}:{node.lineno}: not a literal"
                    found[str(name.value)] = None
    return list(found)


def hide(name: str) -> set[str]:
    """Let a private name look as if the framework did not have it.

    Returns:
        Filled with the names that are asked for.
    """
    asked: set[str] = set()
    private_names: Any = import_module("fastnet.backend.private_names")
    look_up, read = private_names.look_up, private_names.read

    def look_up_others(path: str, fits: Any) -> Any:
        asked.add(path)
        return None if name in (path, EVERYTHING) else look_up(path, fits)

    def read_others(owner: Any, attribute: str, default: Any = None) -> Any:
        asked.add(attribute)
        return default if name in (attribute, EVERYTHING) else read(owner, attribute, default)

    private_names.look_up, private_names.read = look_up_others, read_others
    private_names.PUBLIC_ONLY = private_names.PUBLIC_ONLY or name == EVERYTHING
    return asked


def run_without(framework: str, name: str) -> tuple[str | None, list[str]]:
    """Run the programs in a process of their own.

    Returns:
        What failed, or None; and the names that were asked for.
    """
    receive, send = os.pipe()
    process = os.fork()
    if not process:
        try:
            asked, failure = hide(name), None
            import_module(f"tests.backend.{framework}.smoke").run()
        except BaseException:
            failure = traceback.format_exc()
        with os.fdopen(send, "w") as pipe:
            json.dump([failure, sorted(asked)], pipe)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        said = pipe.read()
    _, status = os.waitpid(process, 0)
    failure, found = json.loads(said) if said else (f"it ended with the status {status}", [])
    return failure, found


if __name__ == "__main__":
    for package in PACKAGES[sys.argv[1]]:
        import_module(package)
    outcome, asked_for = run_without(sys.argv[1], NOTHING)
    print(json.dumps([NOTHING, outcome]), flush=True)
    for each in (*names_of(sys.argv[1]), EVERYTHING):
        runs = each in asked_for or each == EVERYTHING
        outcome = run_without(sys.argv[1], each)[0] if runs else UNASKED
        print(json.dumps([each, outcome]), flush=True)
