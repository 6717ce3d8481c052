"""The servers that the clients talk to, one of each kind for all of them, and the node clients.

The clients are no part of caldrix's own environment: `make clients` makes one that has them all.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import client_server
import pytest
from client_server import Served

HERE = Path(__file__).resolve().parent
PYTHON_CLIENTS = ("openai", "litellm", "langchain-openai", "llm")
NODE_CLIENTS = ("openai", "ai", "@ai-sdk/openai-compatible", "node")


def pytest_report_header() -> list[str]:
    """Which versions were tested."""
    curl = shutil.which("curl")
    told = subprocess.run([curl, "--version"], capture_output=True, text=True) if curl else None
    found = ["curl none" if told is None else " ".join(told.stdout.split()[:2])]
    for name in PYTHON_CLIENTS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} none")
    modules = Path(os.environ.get("CALDRIX_NODE_CLIENTS", "")) / "node_modules"
    for name in NODE_CLIENTS:
        package = modules / name / "package.json"
        if package.exists():
            found.append(f"npm {name} {json.loads(package.read_text())['version']}")
    return ["clients: " + ", ".join(found)]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Answers every chat with client_server.REPLY."""
    directory = client_server.write_once(tmp_path_factory.mktemp("once"))
    with client_server.serve(directory) as served:
        yield served


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Never ends by itself; one request at a time and none may wait."""
    directory = client_server.write_endless(tmp_path_factory.mktemp("endless"))
    flags = ("--max-context", str(client_server.MAX_CONTEXT), "--queue-depth", "0")
    with client_server.serve(directory, *flags) as served:
        yield served


@pytest.fixture(autouse=True)
def _quiet_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client asks the network for anything but the server under test."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


@pytest.fixture(scope="session")
def node_clients() -> Path:
    """The folder with the npm clients; installed into the one that CALDRIX_NODE_CLIENTS names."""
    named = os.environ.get("CALDRIX_NODE_CLIENTS")
    if not named:
        pytest.skip("no npm clients: `make clients` installs them")
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine")
    folder = Path(named)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "node" / "package.json").read_text()
    stamp = folder / "installed.json"
    if not stamp.exists() or stamp.read_text() != wanted:
        (folder / "package.json").write_text(wanted)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=folder, check=True)
        stamp.write_text(wanted)
    for script in (HERE / "node").glob("*.mjs"):
        shutil.copy(script, folder)  # beside node_modules, where node looks for packages
    return folder
