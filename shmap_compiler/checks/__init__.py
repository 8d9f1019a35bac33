"""Static checks of a Graph: results that differ where a spec says they do not, and deadlocks."""
