"""Loops to source text, through templates."""
