"""From a Graph to StableHLO: the one primitive, and the module that is emitted for it."""
