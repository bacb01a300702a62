"""Where the workers of a group run: in this process, in child processes, or as actors of Ray."""
