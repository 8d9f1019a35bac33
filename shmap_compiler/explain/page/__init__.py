"""An explanation as one HTML page that refers to no other.

```
markup      elements of HTML; what is not one is escaped
  |
  +-- summary    in a sentence, and tables of collectives, totals, memory and figures
  +-- timeline   the events, as data for page.js, which draws them
  +-- mesh       the devices
  |     arrays     and the blocks of each array
  |     holders    devices in words
  v
document    the page, with page.css and page.js in it
```
"""

from shmap_compiler.explain.page.document import page

__all__ = ["page"]
