"""What the process says of itself: statistics, health, and faults of ours.

What must not live here: names of metrics, and pages. `metrics` and `telemetry`
read what stands here.
"""
