"""Writes docs/passes.md from the docstrings of the passes: python docs/make_passes.py

A docstring is prose with four sections that begin at the margin. "Before" and "After" are code, as
is what else is indented; "Needs" and "Leaves" become points of a list.
"""

import inspect
import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import shmap_passes

PAGE = Path(__file__).with_name("passes.md")
DATA = Path(__file__).with_name("validation.json")
OVERLAP_DATA = Path(__file__).with_name("overlap_validation.json")
HEAD = '''\
# Passes

<!-- Made by docs/make_passes.py from the docstrings of the passes. -->

Each pass is one file of `passes/import_/`, `passes/checks/`, `passes/simplify/`,
`passes/overlap/` or `passes/export/`, and one flag of `shmap-opt`. Passes work on the *body form*,
which `passes/ir/body_form.py` describes: StableHLO on per-device types, before wrapping. They are
listed in the order of the pipeline, which leaves out `shmap-import-...`,
`shmap-check-replication`, `shmap-check-hangs` and, unless overlap is on, `shmap-choose-overlap`;
`passes/pipeline.py` explains the order. The flag
`--shmap-pipeline` of `shmap-opt` runs the whole pipeline.

Modules of other producers are brought into body form by `shmap-import-...`. So `shmap-opt` checks
and simplifies what `jax.shard_map` lowers to, and converts it to the form of the other partitioner:

```sh
shmap-opt shardy.mlir --shmap-import-manual-computation --shmap-pipeline=partitioner=gspmd
shmap-opt gspmd.mlir --shmap-import-custom-calls=mesh=i=4,j=2 --shmap-pipeline=partitioner=shardy
```

## Your own pass

A pass is a frozen dataclass with a name, options as fields, and a method that rewrites a module in
place:

```python
from dataclasses import dataclass

from shmap_passes import Pass, PassRefused, Violation, find_ops


@dataclass(frozen=True)
class LimitCollectives(Pass):
    """Rejects programs with too many all_reduces."""

    name = "my-limit-collectives"
    needs_body_form = True

    most: int = 8

    def run(self, module):
        found = find_ops(module.operation, ["stablehlo.all_reduce"])
        if len(found) > self.most:
            problem = f"{len(found)} all_reduces, more than {self.most}; merge some of them"
            raise PassRefused([Violation(found[-1].location, problem)])
```

`shmap-opt module.mlir --load-pass my_pass.py --my-limit-collectives=most=4` runs it on a file. In
Python, `shmap_compiler.passes` adds it to the pipeline that lowers `shard_map`:

```python
with shmap_compiler.passes(LimitCollectives(most=4), after="shmap-fold-all-reduces"):
    jax.jit(step)(params, batch)
```

Text names a pass of MLIR or its dialects: `passes("canonicalize", "cse")`. By default added passes
run where the module is last in body form, before `shmap-legalize-collectives`. Functions that were
compiled outside of the context are compiled again inside, and the other way round.

If a pass rejects a module or raises an exception while JAX lowers a program, the error message ends
with a reproducer: the module before the passes is written to a file, and the message gives the
`shmap-opt` command that runs the same passes on it. A pass that is defined in a file of its own can
be loaded by that command.'''


VALIDATION = """\
## What has been validated

`python docs/make_validation.py` simulates every example after every pass, for both partitioners,
and compares the blocks of all devices before and after ([how](howto/validate.md)). "Programs" is
the number of modules that the pass ran on, "changed" the number that it rewrote, and "exchanges
saved" the number of collectives that it removed from them, counted once for each group of devices.
"Largest difference" is relative to the largest magnitude of a result.

| pass | results | programs | changed | exchanges saved | largest difference |
|---|---|---|---|---|---|"""


OVERLAP_VALIDATION = """\
The passes that overlap communication and products leave the examples as they are, unless
`shmap-choose-overlap` runs. Each of their forms is validated on programs of its own
(`test/overlap_programs.py`), in f32 and bf16, from body form to the last module of both
partitioners. The differences are between the module after the pass and the module before it: in a
ring of partial sums, bf16 is rounded at every device. Allocated buffers start as NaN, so a read
before the write would show. Where values are sent in a narrower type, the inputs are exact in it.

| pass | form | results | difference in f32 | in bf16 |
|---|---|---|---|---|"""


def page() -> str:
    entries = (part for cls in shmap_passes.PASSES for part in _entry(cls))
    return "\n\n".join([HEAD, *entries, _validation(), _overlap_validation()]) + "\n"


def _validation() -> str:
    rows = json.loads(DATA.read_text())
    return "\n".join([VALIDATION, *(_row(cls, rows[cls.name]) for cls in _validated(rows))])


def _validated(rows: dict[str, Any]) -> Iterator[type[shmap_passes.Pass]]:
    return (cls for cls in shmap_passes.PASSES if cls.name in rows)


def _overlap_validation() -> str:
    rows = []
    for row in json.loads(OVERLAP_DATA.read_text()):
        results = "bitwise equal" if row["bitwise"] else "may round differently"
        form = row["form"] + (", groups over two axes" if row["program"] == "over two axes" else "")
        differences = " | ".join(_shown(row[dtype]) for dtype in ("float32", "bfloat16"))
        rows.append(f"| `{row['pass']}` | {form} | {results} | {differences} |")
    return "\n".join([OVERLAP_VALIDATION, *rows])


def _shown(difference: float) -> str:
    return "none" if difference == 0 else f"{difference:.0e}"


def _row(cls: type[shmap_passes.Pass], row: dict[str, Any]) -> str:
    results = "bitwise equal" if cls.keeps_bits else "may round differently"
    return (
        f"| `{cls.name}` | {results} | {row['programs']} | {row['changed']} | {row['fewer']} "
        f"| {_shown(row['difference'])} |"
    )


def _entry(cls: type[shmap_passes.Pass]) -> Iterator[str]:
    yield f"## {cls.name}"
    text = inspect.getdoc(inspect.getmodule(cls)) or ""
    for kind, lines in groupby(_classified(text), key=lambda pair: pair[0]):
        part = "\n".join(line for _, line in lines)
        if kind == "code":
            yield f"```mlir\n{part}\n```"
        elif kind == "list":
            yield re.sub(
                r"^(Needs|Leaves): +", r"- **\1** ", re.sub(r"\n +", "\n  ", part), flags=re.M
            )
        elif kind == "prose":
            yield part
    for field in shmap_passes.option_fields(cls):
        default = shmap_passes.option_text(field.default)
        yield f"Option `{field.name}`, by default `{default}`."


def _classified(text: str) -> Iterator[tuple[str, str]]:
    """Each line with its kind: "prose", "code", "list" or, if it is empty, ""."""
    kind = ""
    for line in text.splitlines():
        if not line:
            kind = ""
        elif line.startswith(("Before", "After")):
            kind = "code"
        elif line.startswith(("Needs", "Leaves")):
            kind = "list"
        elif not line.startswith(" "):
            kind = "prose"
        elif not kind:
            kind = "code"
        yield kind, line


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
