"""Mutated modules for shmap-opt: see run.py."""
