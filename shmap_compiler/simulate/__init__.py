"""Plays per-device programs device by device, on StableHLO's reference interpreter.

```
module       a module: its functions, its mesh
  |
compile      its steps; segments are what the interpreter evaluates, borders read shardings
  v
play         every device a coroutine (device); groups that are complete go on; hangs
  v
simulation   what happened: results of each device, exchanges, deadlock, unequal copies
  |
validate_stages   the simulations after each pass compared, then with XLA and a reference
```

Collectives, control flow that contains them, and the position of a device are played here.
`worker` evaluates everything else, in a process that may die. Observers of a program that is played
op by op find where results begin to differ (`trace_values`, `against_xla`, `against_reference`).
"""
