"""Invariants of steps and updates."""
