"""The pages of the API reference: one for each public module, with every name it exports.

Modules are read as text, never imported, so that the site is built without any framework.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

# In this order; a name that several export is documented where it comes first.
MODULES = (
    "fastnet",
    "fastnet.op.tensorop",
    "fastnet.op.tensorop.model",
    "fastnet.op.tensorop.loss",
    "fastnet.op.tensorop.gradient",
    "fastnet.op.tensorop.meta",
    "fastnet.op.tensorop.augmentation",
    "fastnet.op.numpyop",
    "fastnet.op.numpyop.meta",
    "fastnet.op.numpyop.univariate",
    "fastnet.schedule",
    "fastnet.slicer",
    "fastnet.backend",
    "fastnet.util",
    "fastnet.distributed",
    "fastnet.profiling",
    "fastnet.types",
    "fastnet.errors",
    "fastnet.network",
    "fastnet.compat.v1",
    "fastnet.integrations.fastestimator",
)

# These come first on the page of `fastnet`; the others follow in the order of `__all__`.
FIRST = ("Network", "build", "steps")


@dataclass
class Page:
    """The reference of one module.

    Attributes:
        module: The module.
        own: The names that are documented on this page.
        elsewhere: For each name that another page documents: what it is imported from there by,
            and what it is defined as.
        packages: The modules it exports, as what they are imported by.
    """

    module: str
    own: list[str] = field(default_factory=list)
    elsewhere: dict[str, tuple[str, str]] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where the page is on the site."""
        return f"reference/{self.module}.md"

    @property
    def anchors(self) -> list[str]:
        """What the page must have an anchor for: each name that the module exports but modules."""
        return [f"{self.module}.{name}" for name in (*self.own, *self.elsewhere)]

    def markdown(self) -> str:
        """Write the page, for mkdocstrings to fill in."""
        parts = [f"# {self.module}", ast.get_docstring(_tree(self.module)) or ""]
        if self.packages:
            links = [f"[`{name}`]({name}.md)" for name in self.packages if name in MODULES]
            parts.append(f"Packages: {', '.join(links)}")
        if self.elsewhere:
            rows = [
                f'| <span id="{self.module}.{name}"></span>`{name}` | [`{place}`][{identifier}] |'
                for name, (place, identifier) in self.elsewhere.items()
            ]
            parts.append("\n".join(["| name | documented as |", "|---|---|", *rows]))
        for name in self.own:
            public, (module, own) = f"{self.module}.{name}", defined(self.module, name)
            if module.rpartition(".")[2] != own:
                parts.append(f"::: {public}")
            else:  # griffe finds the module of the same name
                parts.append(f'<span id="{public}"></span>\n\n::: {module}.{own}')
        return "\n\n".join(parts) + "\n"


def pages() -> list[Page]:
    """Return a page for each of `MODULES`."""
    documented: dict[tuple[str, str], str] = {}
    made = []
    for module in MODULES:
        page = Page(module)
        for name in sorted(exported(module), key=lambda name: name not in FIRST):
            if _file(f"{module}.{name}") is not None and name not in _imported(module):
                page.packages.append(f"{module}.{name}")
                continue
            definition = defined(module, name)
            if definition in documented:
                page.elsewhere[name] = (documented[definition], ".".join(definition))
            else:
                documented[definition] = f"{module}.{name}"
                page.own.append(name)
        made.append(page)
    return made


def exported(module: str) -> list[str]:
    """Read a module's `__all__`.

    Args:
        module: The module's name.

    Returns:
        The names in it.

    Raises:
        ValueError: If the module has no such list.
    """
    assigned = {
        ast.unparse(node.targets[0]): node.value
        for node in _statements(module)
        if isinstance(node, ast.Assign)
    }
    names = assigned.get("__all__")
    # such as `__all__ += math.__all__`
    added = [node.value for node in _tree(module).body if isinstance(node, ast.AugAssign)]
    if added:
        parts = [ast.unparse(one).removesuffix(".__all__") for one in added]
        return [name for part in parts for name in exported(f"{module}.{part}")]
    if names is not None:
        return list(ast.literal_eval(names))
    raise ValueError(f"{module} has no __all__ that can be read without importing it.")


def defined(module: str, name: str) -> tuple[str, str]:
    """Follow a name through imports to the module that defines it.

    Args:
        module: Where it is exported.
        name: The name there.

    Returns:
        The module, and the name in it.
    """
    while (origin := _imported(module).get(name)) is not None:
        module, name = origin
    return module, name


def _imported(module: str) -> dict[str, tuple[str, str]]:
    """Return the names of fastnet that a module imports, each with its origin."""
    found = {}
    for node in _imports(module):
        if node.module is None or not node.module.startswith("fastnet"):
            continue
        for alias in node.names:
            if alias.name == "*":
                found.update({name: (node.module, name) for name in exported(node.module)})
                continue
            # An imported module is not a name of the importing module.
            if _file(f"{node.module}.{alias.name}") is None or _has(node.module, alias.name):
                found[alias.asname or alias.name] = (node.module, alias.name)
    return found


def _has(module: str, name: str) -> bool:
    """Say whether a package has a function or class besides the module of the same name."""
    return any(
        alias.name == name and node.module == f"{module}.{name}"
        for node in _imports(module)
        for alias in node.names
    )


def _imports(module: str) -> Iterator[ast.ImportFrom]:
    return (node for node in _statements(module) if isinstance(node, ast.ImportFrom))


def _statements(module: str) -> Iterator[ast.stmt]:
    """Yield the statements of a module and of `if TYPE_CHECKING`."""
    for node in _tree(module).body:
        yield from node.body if isinstance(node, ast.If) else [node]


def _file(module: str) -> Path | None:
    path = SOURCE.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _tree(module: str) -> ast.Module:
    file = _file(module)
    if file is None:
        raise ValueError(f"There is no module {module} in {SOURCE}.")
    return ast.parse(file.read_text(encoding="utf-8"))
