"""The cost model: chips, the networks that connect them, and the time of a collective."""
