"""What is to be learned: prompts to train on, others to evaluate on, and what their completions are worth."""
