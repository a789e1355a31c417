"""Nothing is left behind: each private name of a module is used in it.

`make lint` runs this, since ruff looks only for what functions and imports leave behind.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PARTS = ("ratelimit_service", "client", "benchmarks", "docs", "examples", "proto")


def test_nothing_is_left_behind() -> None:
    """No module has a private constant, function or class that it does not use."""
    modules = [
        path
        for part in PARTS
        for path in sorted((PROJECT / part).rglob("*.py"))
        if "generated" not in path.parts
    ]

    assert len(modules) > 300
    assert [
        f"{path.relative_to(PROJECT)}:{line}: {name} is used nowhere, so remove it"
        for path in modules
        for line, name in leftovers(path.read_text())
    ] == []


def test_leftovers_are_found() -> None:
    """A name is used where it is read, not where it is set, and not by itself alone."""
    module = """\
_used = 1
_left: int = _used
_ONE, (_TWO, *_THREE) = 1, (2, 3)
_read = _TWO
_dotted = _read.real
other._dotted
public = 1
__all__ = []

def _one():
    return _one()

@decorator
def _registered(): ...

class _Two:
    def _method(self): ...

async def _three(value: _Two): ...

def four(value: "_dotted"):
    global _left
    _left = f"{_ONE}"
"""

    assert list(leftovers(module)) == [(2, "_left"), (3, "_THREE"), (10, "_one"), (19, "_three")]


def leftovers(source: str) -> Iterator[tuple[int, str]]:
    """The private names that a module defines at its top and does not use, with their lines."""
    module = ast.parse(source)
    used = [set(_read(node)) for node in module.body]
    times = Counter(chain.from_iterable(used))
    for node, own in zip(module.body, used, strict=True):
        for name in _defined(node):
            private = name.startswith("_") and not name.startswith("__")
            if private and times[name] == (name in own):
                yield node.lineno, name


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            if not node.decorator_list:  # a decorator may register it
                yield node.name
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        yield part.id


def _read(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name, ctx=ast.Load()):
                yield name
            case ast.Constant(value=str(name)) if name.isidentifier():  # a type, written as text
                yield name
