"""The import rule, checked: who may import whom (docs/architecture.md).

Reads every import of every file with `ast`, also those inside functions and those for types
alone. Prints one line a breach and exits 1. Knows nothing of what the modules do.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A module may import from strictly lower layers or from its own package.
LAYERS: dict[str, float] = {
    "cgroups": 0, "errors": 0, "log": 0, "units": 0,
    "native": 1, "native_files": 1.5, "progress": 1, "storage": 1,
    "http": 2, "hub": 2, "text": 2, "image": 2, "formats": 2,
    "models": 3,
    "compile": 4,
    "engine": 5,
    "api": 6,
    "inferno": 7, "cli": 7,
    "__main__": 8,
}  # fmt: skip

# Beyond the layers: packages that only some may import, and packages that some must not know.
ONLY_FROM = {"hub": {"cli", "hub"}, "_native": {"native", "native_files"}}
NOT_FROM = {"http": {"engine", "compile", "models"}}
ASYNCIO = {"http", "engine", "api", "cli"}

# Each third-party package belongs to one module; numpy may be used anywhere.
THIRD_PARTY: dict[str, set[str] | None] = {
    "safetensors": {"formats/safetensors.py"},
    "tokenizers": {"text/tokenizer.py"},
    "jinja2": {"text/chat_template.py"},
    "huggingface_hub": {"hub/huggingface.py"},
    "PIL": {"image/decode.py"},
    "cffi": set(),
    "numpy": None,
}

# C, by folder: a file includes from its own folder and from lower ones.
C_ORDER = {"include": 0, "base": 1, "quant": 2, "sample": 2, "cpu": 3, "gpu": 3, "plan": 4}


def imports_of(tree: ast.AST, package: list[str]) -> list[tuple[int, str]]:
    """(line, dotted module) of every import in a file of `package`, relative ones resolved."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            if module == "caldrix":
                found += [(node.lineno, f"caldrix.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, module))
    return found


def check_python(path: Path) -> list[str]:
    relative = path.relative_to(ROOT / "caldrix")
    unit = relative.parts[0].removesuffix(".py")
    if unit == "__init__":
        return []
    where = f"caldrix/{relative.as_posix()}"
    if unit not in LAYERS:
        return [f"{where}: {unit!r} has no layer; add it to tools/layers.py"]
    package = ["caldrix", *relative.parts[:-1]]
    breaches = []
    for line, name in imports_of(ast.parse(path.read_text(encoding="utf8")), package):
        problem = judge(unit, relative.as_posix(), name)
        if problem:
            breaches.append(f"{where}:{line}: {problem}")
    return breaches


def judge(unit: str, file: str, name: str) -> str | None:
    """Why this import is refused, or None."""
    top, *rest = name.split(".")
    if top == "caldrix":
        target = rest[0] if rest else ""
        if target in ("", "__version__", unit):
            return None
        if target in ONLY_FROM and unit not in ONLY_FROM[target]:
            return f"imports {name}, which only {', '.join(sorted(ONLY_FROM[target]))} may"
        if unit in NOT_FROM.get(target, ()):
            return f"imports {name}, which {unit} must not know"
        if target != "_native" and LAYERS.get(target, 99) >= LAYERS[unit]:
            return f"imports {name}: layer {LAYERS.get(target)} is not below layer {LAYERS[unit]}"
        return None
    if top == "asyncio" and unit not in ASYNCIO:
        return "imports asyncio, which only http, engine, api and cli may"
    if top in THIRD_PARTY:
        owners = THIRD_PARTY[top]
        return None if owners is None or file in owners else f"imports {top}, owned by {owners}"
    return None if top in sys.stdlib_module_names else f"imports {top}, which is no dependency"


def check_c(path: Path) -> list[str]:
    relative = path.relative_to(ROOT / "native")
    folder, where = relative.parts[0], f"native/{relative.as_posix()}"
    breaches = []
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not match:
            continue
        name = match[1]
        target = name.split("/")[0] if "/" in name and name.split("/")[0] in C_ORDER else None
        if name == "Python.h":
            breaches.append(f"{where}:{number}: includes Python.h")
        elif relative.parts[:2] == ("cpu", "kernels"):
            breaches.append(f"{where}:{number}: a kernel file includes nothing")
        elif target and target != folder and C_ORDER[target] >= C_ORDER.get(folder, 0):
            breaches.append(f"{where}:{number}: {folder} may not include {target}")
    return breaches


def main() -> int:
    breaches: list[str] = []
    for path in sorted((ROOT / "caldrix").rglob("*.py")):
        breaches += check_python(path)
    for pattern in ("*.c", "*.h"):
        for path in sorted((ROOT / "native").rglob(pattern)):
            breaches += check_c(path)
    print("\n".join(breaches) or "layers: ok")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
