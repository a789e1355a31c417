"""Whose turn it is in the one event loop of a process: turns, work in slices, the clock.

What must not live here: what the work is for. Nothing here knows of rate limits.
"""
