"""One step of a recorded run, or all of them, run again: is it what it was? And the step debugger."""
