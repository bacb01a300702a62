"""One step of a recorded run in one file, which another machine can run again."""
