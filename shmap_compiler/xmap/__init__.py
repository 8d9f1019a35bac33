"""`xmap`: functions of named axes, which are then assigned to mesh axes, loops or `vmap`."""
