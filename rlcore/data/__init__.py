"""Data of a run: tasks, prompts and rewards, trajectories, batches and microbatches."""
