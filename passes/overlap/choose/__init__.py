"""Chooses the forms of the sites of a module, for a machine and its memory."""
