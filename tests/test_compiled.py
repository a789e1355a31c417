"""Modules that are compiled can be imported: what mypyc makes of their values is known to load.

`make lint` runs this, since a build takes minutes and this takes none.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import mypyc.build  # noqa: F401 -- fills the registry
from mypyc.primitives import registry

PROJECT = Path(__file__).parents[1]

KNOWN = {*registry.builtin_names, *registry.global_names}
"""Builtins that mypyc finds by itself. It looks for all others among the module's own names."""


def compiled() -> dict[str, list[Path]]:
    """The modules that `setup.py` lists, by what it calls them."""
    listed = re.search(r"COMPILED = (\{.*?\})", (PROJECT / "setup.py").read_text(), re.DOTALL)
    assert listed
    package, groups = PROJECT / "ratelimit_service", ast.literal_eval(listed[1])
    modules = " ".join(groups.values()).split()
    return {module: sorted(package.glob(f"{module}.py")) for module in modules}


def test_what_is_compiled_is_there() -> None:
    """`setup.py` names no module that is gone; a build would find that out after minutes."""
    assert [module for module, paths in compiled().items() if not paths] == []


def unknown_fields(text: str) -> Iterator[str]:
    """The fields of a module's classes whose type a compiled module does not find on import."""
    tree = ast.parse(text)
    typing_only = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for each in node.body
        if isinstance(each, ast.ImportFrom | ast.Import)
        for alias in each.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign):
                continue
            kind = field.annotation
            name = ast.unparse(kind.value if isinstance(kind, ast.Subscript) else kind)
            builtin = hasattr(builtins, name) and f"builtins.{name}" not in KNOWN
            if builtin or name.partition(".")[0] in typing_only:
                yield f"{node.name}.{ast.unparse(field.target)}: {name}"


def test_fields_of_compiled_modules() -> None:
    """Compiled, no class has a field whose type is missing when its module is imported."""
    modules = [path for paths in compiled().values() for path in paths]

    assert len(modules) > 50
    assert {
        str(path.relative_to(PROJECT)): found
        for path in modules
        if (found := list(unknown_fields(path.read_text())))
    } == {}


def test_fields_that_cannot_be_found() -> None:
    """`object` is such a type, and so is what is imported for the type checker alone."""
    text = """
if TYPE_CHECKING:
    from elsewhere import Far

class Fields(NamedTuple):
    number: int
    some: frozenset[int]
    several: Mapping[str, object] | None
    parent: object
    far: Far
"""

    assert list(unknown_fields(text)) == ["Fields.parent: object", "Fields.far: Far"]
