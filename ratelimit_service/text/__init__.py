"""Text for people: numbers, times and descriptors as they are shown and typed."""
