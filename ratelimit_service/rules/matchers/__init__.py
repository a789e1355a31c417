"""Which values a descriptor takes, where that is more than one: one file each."""
