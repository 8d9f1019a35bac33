"""Facts about the values of a module, shared by passes: replication, per-device constants."""
