"""Hints at rules that no value reaches cost no more than twice as much for twice as many rules."""

from __future__ import annotations

import pytest

from ratelimit_service.cli.problems import FORMATS
from ratelimit_service.rules.lint import Linted, lint_text
from tests.grpc.counted_work import work_of

LIMIT = "rate_limit: {unit: day, requests_per_unit: 100}"


@pytest.mark.parametrize("form", ["value: '*p{0}*'", "value: 'p{0}-*'", "cidr: 10.{1}.{2}.0/24"])
def test_more_rules(form: str) -> None:
    """Each is compared with the few before it that may cover it, and not with all."""

    def lint(count: int) -> None:
        each = [form.format(number, number >> 8, number & 255) for number in range(count)]
        lines = "\n".join(f"- {{key: k, {one}, {LIMIT}}}" for one in each)
        lint_text("rules.yaml", f"domain: edge\ndescriptors:\n{lines}\n".encode())

    lint(10)

    assert work_of(lambda: lint(1_600)) < 2.6 * work_of(lambda: lint(800))


class Read(dict[str, bytes]):
    """Files of which each look is counted."""

    looks = 0

    def get(self, key: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        self.looks += 1
        return super().get(key, default)


def test_many_problems_of_one_file() -> None:
    """A file is taken apart once, and not for each line that is shown of it."""
    rules = "\n".join([f"- {{key: k, value: '*{number}*', {LIMIT}}}" for number in range(100)])
    text = f"domain: edge\ndescriptors:\n{rules}\n".encode()
    linted = lint_text("rules.yaml", text)
    files = Read({"rules.yaml": text})

    shown = list(FORMATS["text"](Linted(linted.problems, files)))

    assert (len(linted.problems), len(shown)) == (90, 270)
    assert files.looks == 1
