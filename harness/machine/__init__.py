"""GPUs of this machine, their health, its network interfaces and their connections."""
