"""From a Python function to a Graph."""
