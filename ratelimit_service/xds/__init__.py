"""The program that asks a management server for rules."""
