"""Consumers of the run's events: terminal, JSON lines, JUnit XML. Reporters read; they decide nothing."""
