"""One step of a recorded run, again: from the nearest checkpoint, and whether it is what it was."""
