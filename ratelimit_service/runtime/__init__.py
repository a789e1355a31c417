"""The life of processes: what is built from what, signals, start, restart and drain.

`app` starts a `supervisor` with `workers`, each of which runs `worker`.
Nothing is imported here, so that a worker loads only what it needs.
"""
