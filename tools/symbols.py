"""What leaves an object: a row's object exports its table and nothing else.

A function of a row with external linkage could be taken by the linker for every row, and a wide
instruction would then run on a processor without it. The module itself exports its entry point
alone. Looks at what tools/build_native.py built; prints one line a breach and exits 1.
"""

import subprocess
import sys
from pathlib import Path

import build_native


def exported(path: Path, *flags: str) -> set[str]:
    """Names that `path` defines and others may link to."""
    command = ["nm", "-g", "--defined-only", *flags, str(path)]
    listing = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    names = {line.split()[-1] for line in listing.splitlines() if len(line.split()) == 3}
    return {name.removeprefix("_") if sys.platform == "darwin" else name for name in names}


def breaches() -> list[str]:
    how = build_native.setting()
    found = []
    expected: list[tuple[Path, set[str], tuple[str, ...]]] = []
    for source, _ in build_native.sources():
        if source.name.startswith("row_"):
            object_file = how.objects / source.relative_to(build_native.NATIVE).with_suffix(".o")
            expected.append((object_file, {f"cx_{source.stem}"}, ()))
    module = build_native.ROOT / "caldrix" / build_native.module_name()
    expected.append((module, {"PyInit__native"}, ("-D",) if sys.platform == "linux" else ()))
    for path, wanted, flags in expected:
        if not path.exists():
            found.append(f"{path}: not built; run tools/build_native.py --inplace")
            continue
        names = exported(path, *flags)
        if names != wanted:
            odd = ", ".join(sorted(names ^ wanted))
            found.append(f"{path}: exports {sorted(names)}, not {sorted(wanted)}: {odd}")
    return found


if __name__ == "__main__":
    problems = breaches()
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))
