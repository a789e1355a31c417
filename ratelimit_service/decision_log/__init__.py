"""The decision log: its lines, and their way from who decides to the process that writes them."""
