"""`make abuse`: attacks on the service beside an honest client, and what they come to.

`attacks` says what an attacker does, `wire` how it speaks, `honest` is who must not notice, and
`__main__` starts all of them and holds the results against bounds.
"""
