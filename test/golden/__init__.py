"""Golden copies of the examples' modules."""
