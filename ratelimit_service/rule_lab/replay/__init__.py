"""Recorded requests, asked of rules before they serve: what would have been answered, and to whom.

`logs` reads what was recorded, `trace` asks the real limiter on a clock of its own, `play` compares
two sets of rules, `use` and `sketches` keep what came of it in bounded memory, `report` says it,
and `text` and `page` show it.
"""
