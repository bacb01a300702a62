"""Hosts whose networks are broken on purpose, as network namespaces."""
