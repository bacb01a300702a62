"""Levels of determinism and every environment variable that moves bits."""
