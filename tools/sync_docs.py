"""Writes the generated parts of docs/: flags and chat commands, from the tables in the code, and
the benchmarks with their charts, from the records in docs/benchmarks/.

A page holds a pair of comments, `<!-- table: NAME -->` and `<!-- end -->`; what stands between them
is replaced. With --check nothing is written and a page that differs is an error.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bench_report  # noqa: E402

from caldrix.cli import commands, usage  # noqa: E402

TABLES: dict[str, Callable[[], str]] = {
    "run flags": lambda: usage.markdown_table(usage.flags_of("run")[0]),
    "serving flags of run": lambda: usage.markdown_table(usage.flags_of("run")[1]),
    "flags of bench": lambda: usage.markdown_table(usage.flags_of("bench")[0]),
    "flags of serve": lambda: usage.markdown_table(usage.flags_of("serve")[0]),
    "serving flags of serve": lambda: usage.markdown_table(usage.flags_of("serve")[1]),
    "chat commands": commands.markdown_table,
    "benchmarks": bench_report.page,
}
_BLOCK = re.compile(r"(<!-- table: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def synced(text: str) -> str:
    """The page with its tables as the code has them."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n{m[3]}", text)


def wanted() -> dict[Path, str]:
    """Every file with generated parts, as the code and the records have it."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    found = {page: synced(page.read_text(encoding="utf8")) for page in pages}
    return found | {path: chart() for path, chart in bench_report.charts().items()}


def main(arguments: list[str]) -> int:
    stale = []
    for path, text in wanted().items():
        if not path.exists() or path.read_text(encoding="utf8") != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf8")
    if "--check" in arguments and stale:
        print(f"docs: {', '.join(stale)} differ from the code; run tools/sync_docs.py")
        return 1
    print("docs: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
