"""The library as it is installed without extras: three direct dependencies, nothing of the server, two nodes meet."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DIRECT = {"trio", "msgpack", "blake3"}
BROUGHT = {"attrs", "sortedcontainers", "idna", "outcome", "sniffio", "typing_extensions"}
"""What trio and blake3 bring along; nothing else may be there beside pip."""
INSTALL_S, RUN_S = 240, 60

TWO_NODES = """
import json, sys
import trio
from swimcluster import Config, open_cluster, parse_address

KEY = b"a key of sixteen bytes or more"

def config(name, seeds=()):
    return Config.local(name=name, bind=parse_address("127.0.0.1:0"), seeds=seeds, keys=[KEY])

async def main():
    with trio.fail_after(30):
        async with open_cluster(config("a")) as a, open_cluster(config("b", [a.local.address])) as b:
            for cluster in (a, b):
                await cluster.wait_for(lambda members: len(members) == 2)
            b.set_metadata(b"hello")
            await a.wait_for(lambda members: any(member.metadata == b"hello" for member in members))
            names = sorted(member.name for member in a.members)
    outside = [m for m in sys.modules if m.partition(".")[0] in {"saiserve", "hypercorn", "starlette", "msgspec", "numpy"}]
    print(json.dumps({"names": names, "outside": outside}))

trio.run(main)
"""


def run(*command: str | Path, within_s: float, folder: Path) -> str:
    """Run one program to its end; what it printed. Its own errors come out with the failure."""
    done = subprocess.run(
        list(map(str, command)), check=False, cwd=folder, capture_output=True, text=True, timeout=within_s
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
def test_the_bare_install_brings_three_dependencies_and_runs_a_cluster_of_two(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=True)
    python = tmp_path / "bare" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", ROOT, within_s=INSTALL_S, folder=tmp_path)
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json", within_s=RUN_S, folder=tmp_path))
    there = {one["name"].lower() for one in listed} - {"pip", "setuptools"}
    assert there - BROUGHT == {"swimcluster", *DIRECT}
    program = tmp_path / "two_nodes.py"
    program.write_text(TWO_NODES, "utf-8")
    told = json.loads(run(python, "-I", program, within_s=RUN_S, folder=tmp_path))
    assert told == {"names": ["a", "b"], "outside": []}
    assert sys.prefix not in run(python, "-I", "-c", "import swimcluster; print(swimcluster.__file__)", within_s=RUN_S, folder=tmp_path)  # fmt: skip
