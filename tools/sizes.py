"""Caps on files and functions, so that the code stays readable in an afternoon.

Python by `ast`; C functions by their braces in column 0. An exception is a row of ALLOWED with
its reason.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PYTHON_FILE, PYTHON_FUNCTION = 400, 50
C_FILE, C_FUNCTION, C_KERNEL = 600, 80, 120

# "path" or "path:function" -> (lines allowed, why)
ALLOWED: dict[str, tuple[int, str]] = {}


def python_sizes(path: Path) -> list[tuple[str, int, int]]:
    text = path.read_text(encoding="utf8")
    name = path.relative_to(ROOT).as_posix()
    sizes = [(name, text.count("\n"), PYTHON_FILE)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node):  # the contract is not the code
                doc = node.body[0]
                length -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
            sizes.append((f"{name}:{node.name}", length, PYTHON_FUNCTION))
    return sizes


def c_sizes(path: Path) -> list[tuple[str, int, int]]:
    lines = path.read_text(encoding="utf8").splitlines()
    name = path.relative_to(ROOT).as_posix()
    cap = C_KERNEL if "/kernels/" in name or "/quant/" in name else C_FUNCTION
    sizes = [(name, len(lines), C_FILE)]
    start, label = 0, ""
    for number, line in enumerate(lines, 1):
        match = re.match(r"^[A-Za-z_].*?(\w+)\(", line)
        if match:
            start, label = number, match[1]
        elif line == "}" and label:
            sizes.append((f"{name}:{label}", number - start + 1, cap))
            label = ""
    return sizes


def main() -> int:
    sizes: list[tuple[str, int, int]] = []
    for path in sorted((ROOT / "caldrix").rglob("*.py")):
        sizes += python_sizes(path)
    for pattern in ("*.c", "*.h"):
        for path in sorted((ROOT / "native").rglob(pattern)):
            sizes += c_sizes(path)
    over = [
        f"{what}: {length} lines, the cap is {ALLOWED.get(what, (cap, ''))[0]}"
        for what, length, cap in sizes
        if length > ALLOWED.get(what, (cap, ""))[0]
    ]
    print("\n".join(over) or "sizes: ok")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
