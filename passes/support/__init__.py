"""What passes have in common: reading body form, collectives and shardings; what varies."""
