"""Training runs with a name, a YAML file each."""
