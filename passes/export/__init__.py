"""Passes from body form to the module that XLA compiles."""
