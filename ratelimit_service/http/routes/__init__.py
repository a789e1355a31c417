"""What the admin listener answers: a file for what belongs together, and `registry`."""
