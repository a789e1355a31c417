"""Spans of calls, and what is sent over OTLP. The only package that knows OpenTelemetry.

Its library is an extra, and imported by one program only (`exporter`), which runs beside the
service: no process that decides has it in memory, or a thread of it.
"""
