"""Plain data about programs, shared by the rooms that run, describe or store them."""
