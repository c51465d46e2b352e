"""Writes the generated pages of docs/: `python -m docgen`."""
