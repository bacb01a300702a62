"""Controllers: the loop over steps, and what is due between them."""
