"""Regular files, read safely, and read again when they change.

What must not live here: what files mean.
"""
