"""From the words of a command line to what is replayed: rules, and logs of any kind."""

from __future__ import annotations

import json
from pathlib import Path

from ratelimit_service.errors import RulesError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rule_lab.replay.csv_log import Cells, CsvLog
from ratelimit_service.rule_lab.replay.decision_log import AskedText, DecisionLogReader
from ratelimit_service.rule_lab.replay.envoy_log import EnvoyLog, read_mapping
from ratelimit_service.rule_lab.replay.json_lines import Value
from ratelimit_service.rule_lab.replay.logs import LogError, LogReader
from ratelimit_service.rule_lab.replay.recorded import Known
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.text.json_slips import json_slip

__all__ = ["Readers", "rules_of"]


def rules_of(path: Path) -> Snapshot:
    """The rules of a file or directory. Raises RulesError with all that is wrong in them."""
    problems = [problem for problem in lint([path]).problems if problem.fatal(strict=False)]
    if problems:
        raise RulesError("\n".join(map(str, problems)))
    rules = Rules(FromFiles(path), stats=Stats(), health=Health())
    rules.load()
    return rules.snapshot


class Readers:
    """Finds out how each of the logs that are replayed together is to be read."""

    def __init__(self, mapping: Path | None = None) -> None:
        """`mapping` says which fields of JSON lines make requests. Raises LogError."""
        self._mapped = read_mapping(mapping) if mapping is not None else None
        self._asked = Known[AskedText]()
        self._rows: dict[str, Known[Cells]] = {}
        self._fields = Known[tuple[Value, ...]]()

    def reader_of(self, name: str, first: str) -> LogReader:
        """What reads a log with this first line. Raises LogError if nothing does."""
        if not first.lstrip().startswith("{"):
            return CsvLog(name, first, self._rows.setdefault(first, Known()))
        try:
            fields = json.loads(first)
        except (ValueError, RecursionError) as error:
            why = json_slip(error, one_line=True)
            raise LogError(f"{name}:1: the line is no JSON: {why}") from error
        if "v" in fields and "by" in fields and fields.keys() & {"descriptors", "unreadable"}:
            return DecisionLogReader(self._asked)
        if self._mapped is None:
            raise LogError(
                f"{name}:1: this is JSON, but no decision log of ratelimit: for an access log of "
                "Envoy say with --mapping FILE which fields make a descriptor"
            )
        return EnvoyLog(self._mapped, self._fields)
