"""Where the workers of a group run: in this process, or as actors of Ray."""
