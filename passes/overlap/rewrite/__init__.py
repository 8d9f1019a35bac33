"""Builds what sites become: chunks, rings and unrolled steps."""
