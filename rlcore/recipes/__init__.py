"""Recipes: one step of an algorithm on one page, and the stages that it is made of."""
