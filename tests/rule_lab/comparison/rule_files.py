"""Rule files of one domain, as the comparison reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rule_lab.comparison import ChangeKind
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.tree import Domain

File = dict[str, Any]

ADDED, REMOVED = ChangeKind.ADDED, ChangeKind.REMOVED
TIGHTENED, LOOSENED = ChangeKind.TIGHTENED, ChangeKind.LOOSENED
CHANGED, CALLERS = ChangeKind.CHANGED, ChangeKind.CALLERS

END_MINUTE = 30_023_640
"""2027-01-31 at 18:00 UTC."""


def domains(*texts: str) -> Mapping[str, Domain]:
    """The domains of rule files without problems."""
    versions = [Version(f"{at}.yaml", text.encode(), None) for at, text in enumerate(texts)]
    built = build(versions, Tallies, strict=True)
    assert not built.conflicts
    assert not [
        each for file in built.files for each in file.problems if each.fatal(strict=True)
    ], built.files
    return built.domains


def of(*parts: File) -> Mapping[str, Domain]:
    return domains(*map(json.dumps, parts))
