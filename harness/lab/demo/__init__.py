"""The first contact: an example project with planted faults, and whether the commands found them."""
