"""An explanation as one HTML page that refers to no other.

```
markup      elements of HTML; what is not one is escaped
  |
  +-- summary    the verdict, the totals, and where the figures come from
  +-- tables     collectives, compute, memory, and two programs side by side
  +-- timeline   the events, as data for page.js, which draws them
  +-- mesh       the devices
  |     arrays     and the blocks of each array
  |     holders    devices in words
  v
document    the page, with page.css and page.js in it
```
"""

from shmap_compiler.explain.page.document import comparison_page, page

__all__ = ["comparison_page", "page"]
