"""The recipes in other languages: what they print, and how they end."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from ratelimit_client import SyncLimiter
from tests.conftest import need
from tests.ratelimit_client.live import Live
from tests.servers.process import free_port
from tests.waiting import PATIENCE_SECONDS

TOP = Path(__file__).parents[2]
TOOLS = TOP / ".tools"
BUILT = TOOLS / "recipes"
NODE = shutil.which("node") or "node"
numbers = itertools.count()


class Recipe(NamedTuple):
    """A program. It gets what is `always` there itself, `make clients` the rest."""

    command: list[str]
    needs: Path
    always: bool = False
    environment: Mapping[str, str] = {}
    copied: Path | None = None
    """Its directory, if it works when copied out: it then runs from a copy."""


RECIPES = {
    "go": Recipe([str(BUILT / "go")], BUILT / "go", always=True),
    "node": Recipe(
        [NODE, "client.js"],
        TOOLS / "node" / "node_modules" / "@grpc" / "proto-loader",
        always=True,
        environment={"NODE_PATH": str(TOOLS / "node" / "node_modules")},
        copied=TOP / "examples" / "clients" / "node",
    ),
    "java": Recipe(
        ["java", "-cp", f"{BUILT}/java/classes:{BUILT}/java/libraries/*", "Client"],
        BUILT / "java" / "libraries",
    ),
    "rust": Recipe([str(BUILT / "rust" / "debug" / "client")], BUILT / "rust" / "debug" / "client"),
}


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Recipe:
    result = RECIPES[request.param]
    if result.always:
        need(str(result.needs), "install its language, and run the test again")
    elif not result.needs.exists():
        pytest.skip(f"the recipe in {request.param} is not built: make clients builds it")
    if result.copied:
        shutil.copytree(
            result.copied, tmp_path / "copy", ignore=shutil.ignore_patterns("node_modules")
        )
        program, script = result.command
        return result._replace(command=[program, str(tmp_path / "copy" / script)])
    return result


def ask(recipe: Recipe, address: str, *descriptors: str) -> tuple[int, list[str]]:
    """Exit status and lines, without the seconds."""
    done = subprocess.run(
        [*recipe.command, address, "api", *descriptors],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, **recipe.environment},
    )
    return done.returncode, re.sub(r"\d+ s\b", "N s", done.stdout).splitlines()


def test_recipe(recipe: Recipe, live: Live) -> None:
    """A recipe prints each descriptor's status, and its exit status says whether it may go on."""
    address = live.addresses["grpc"]
    with SyncLimiter(address, domain="api", deadline=30) as limiter:
        for _ in range(5):
            name = f"recipe {next(numbers)}"
            limiter.check(user=name, cost=2)
            result = [ask(recipe, address, f"user={name}", f"nothing={name},a=b=c") for _ in "12"]
            if not {status for status, _ in result} - {0, 1}:
                break  # else this machine was too busy for the deadline

    none = f"OK nothing={name},a=b=c no limit"
    assert result == [
        (0, [f"OK user={name} 0 of 3 left, resets in N s", none]),
        (1, [f"OVER_LIMIT user={name} 0 of 3 left, come back in N s", none]),
    ]


def test_recipe_without_a_service(recipe: Recipe) -> None:
    """Where nobody answers a recipe says so with its exit status, and prints no decision."""
    assert ask(recipe, f"127.0.0.1:{free_port()}", "user=a") == (2, [])
