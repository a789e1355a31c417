"""Sockets and names: listening, accepting, certificates, TLS handshakes, addresses of host names.

What must not live here: what is spoken over connections.
"""
