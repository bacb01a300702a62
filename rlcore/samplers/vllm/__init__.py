"""The decoder served by vLLM: its scheduler, its paged cache and its prefix cache around rlcore's own operations."""
