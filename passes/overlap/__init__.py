"""Passes that rewrite body form so that communication and computation can run at the same time."""
