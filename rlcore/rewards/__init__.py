"""Completions to rewards: functions in TRL's signature, adapters for others', and what is made of their numbers."""
