"""Rules tried before they serve: replayed requests, two versions compared, tests of rules.

What must not live here: a network, and counting of its own.
"""
