"""From a jitted program, as XLA's partitioner divided it, to the source of a shard_map function.

```
partitioned    compiles the program; its HLO after the partitioner, its shardings
  |
conversion     HLO -> StableHLO, in a process that may die (worker)
  |
body           StableHLO -> body form: groups and positions by mesh axes (groups, boundary)
  v
program        body form -> the text of a function, block by block (spelling/, loops)
  |
source         the file around it: imports, mesh, specs, arguments (signature)
  v
validation     source, jit program and simulation compared; the first line that differs
```

`unjit` runs all of it. Operations that `spelling/` has no row for are embedded as StableHLO;
`embedded_rules` has their derivatives, by a `reading` of the module as a function.
"""
