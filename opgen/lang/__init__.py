"""Spec text to notation."""
