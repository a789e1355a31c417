"""Which reader a log needs, by its first line."""

from __future__ import annotations

import json
from pathlib import Path

from ratelimit_service.rule_lab.replay.csv_log import Cells, CsvLog
from ratelimit_service.rule_lab.replay.decision_log import DecisionLogReader, RequestText
from ratelimit_service.rule_lab.replay.envoy_log import EnvoyLog, read_mapping
from ratelimit_service.rule_lab.replay.json_lines import Value
from ratelimit_service.rule_lab.replay.logs import LogError, LogReader
from ratelimit_service.rule_lab.replay.recorded import RequestCache
from ratelimit_service.text.json_slips import json_slip

__all__ = ["Readers"]


class Readers:
    """Finds out how each of the logs that are replayed together is to be read."""

    def __init__(self, mapping: Path | None = None) -> None:
        """`mapping` says which fields of JSON lines make requests. Raises LogError."""
        self._mapped = read_mapping(mapping) if mapping is not None else None
        self._decisions = RequestCache[RequestText]()
        self._rows: dict[str, RequestCache[Cells]] = {}
        self._fields = RequestCache[tuple[Value, ...]]()

    def reader_of(self, name: str, first: str) -> LogReader:
        """What reads a log with this first line. Raises LogError if nothing does."""
        if not first.lstrip().startswith("{"):
            return CsvLog(name, first, self._rows.setdefault(first, RequestCache()))
        try:
            fields = json.loads(first)
        except (ValueError, RecursionError) as error:
            why = json_slip(error, one_line=True)
            raise LogError(f"{name}:1: the line is no JSON: {why}") from error
        if "v" in fields and "by" in fields and fields.keys() & {"descriptors", "unreadable"}:
            return DecisionLogReader(self._decisions)
        if self._mapped is None:
            raise LogError(
                f"{name}:1: this is JSON, but no decision log of ratelimit: for an access log of "
                "Envoy say with --mapping FILE which fields make a descriptor"
            )
        return EnvoyLog(self._mapped, self._fields)
