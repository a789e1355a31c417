"""Child processes and this one: started, spoken to, given a priority, and what is installed.

What must not live here: what a process does.
"""
