"""From a Graph to StableHLO: the lowering rule of the primitive."""
