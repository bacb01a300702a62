"""What this machine has (cards, file systems) and the environment a child process is given."""
