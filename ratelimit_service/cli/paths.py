"""Paths as arguments of commands."""

from __future__ import annotations

import os
from pathlib import Path

import click

__all__ = ["PathArgument"]


class PathArgument(click.Path):
    """A path. An empty one, as an unset variable of a shell leaves it, is refused.

    pathlib would take it for the working directory.
    """

    def __init__(self, *, dir_okay: bool = True, allow_dash: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay, allow_dash=allow_dash)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Called by click."""
        if value == "":
            self.fail("the path is empty: name a file or a directory", param, ctx)
        return super().convert(value, param, ctx)
