"""Passes that refuse wrong modules and rewrite nothing."""
