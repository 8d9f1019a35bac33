"""Passes that rewrite body form to body form so that less is communicated."""
