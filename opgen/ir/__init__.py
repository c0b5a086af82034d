"""The two intermediate representations and what is defined on them alone."""
