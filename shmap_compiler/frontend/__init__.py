"""`shard_map` and `smap`: from a call on the user's arguments to a Graph, or to eager results."""
