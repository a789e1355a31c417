"""The real limiter and the real memory store, on a clock that whoever asks sets.

For what is asked of rules before they serve: `world` decides, `cases` are written tests of rules,
`trial` runs them.
"""
