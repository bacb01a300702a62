"""Placement: roles in processes, processes in pools of slots, slots on nodes; planned, printed, reserved, released."""
