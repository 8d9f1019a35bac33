"""Files that are written for users: completely, or not at all."""
