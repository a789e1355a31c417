"""Text for people: numbers, times, addresses and descriptors as they are shown and typed."""
