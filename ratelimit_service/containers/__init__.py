"""Data structures that know nothing of rate limits."""
