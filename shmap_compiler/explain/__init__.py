"""What a compiled program costs: read from the optimized, scheduled HLO, timed by a model.

```
hlo        the text of the module, as instructions
  |
  +-- trip_count       how often loops run
  +-- replica_groups   which devices a collective joins, along which mesh axes
  +-- collective       the collectives, and what they move
  |     links          when the links of the network carry it
  +-- roofline         the time of everything else
  +-- liveness         the arrays in memory at each instruction
  v
schedule       one run: when a device computes, sends and waits, and what its memory holds
  v
explanation    figures as data;  text, page and trace show them;  conditions and
               comparison judge them
```
"""

from shmap_compiler.explain.explanation import Explanation, SideBySide, explain
from shmap_compiler.explain.figures import CollectiveCost, Layout, Memory, Totals

__all__ = ["CollectiveCost", "Explanation", "Layout", "Memory", "SideBySide", "Totals", "explain"]
