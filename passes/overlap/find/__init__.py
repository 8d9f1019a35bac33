"""Finds, in body form, communication with the computation that can run beside it."""
