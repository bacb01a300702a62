"""What runs again: retries and the rest of a file, what failed in the last run, what a stopped run left."""
