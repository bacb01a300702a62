"""The display on a terminal, drawn with rich, which nothing outside this room imports."""
