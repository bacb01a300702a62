"""Fresh runs compared with each other."""
