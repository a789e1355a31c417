"""The real limiter and the real memory store, on a clock that whoever asks sets.

For what is asked of rules before they serve: `simulator` decides, `cases` are written tests of
rules, `rule_test_run` runs them.
"""
