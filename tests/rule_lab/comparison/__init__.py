"""What a change of rules means."""
