"""Experiments on training runs: one package per question, and what they share below them."""
