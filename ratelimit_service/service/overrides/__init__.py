"""Overrides: what operators decide for some callers in place of the rules.

`following` keeps up with where they are kept, `in_force` has those that hold in the way of each
request, and `granted` reads what their grants were charged.
"""
