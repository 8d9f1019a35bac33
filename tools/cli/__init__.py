"""The command `shmap`: inspects, runs and compiles shard_mapped programs."""
