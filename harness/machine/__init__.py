"""What this machine has: GPUs, their health, network interfaces and what can be reached."""
