"""What must hold of the wheel in a clean environment: public names, no torch, and all files that are no Python."""

import importlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

wheel, root = Path(sys.argv[1]), Path(sys.argv[2])

OF_EXTRAS = {"ARTMiddleware"}  # of `agents`

for package in ("art_langgraph", "art_mcp"):
    module = importlib.import_module(package)
    assert not Path(module.__file__).is_relative_to(root), f"{module.__file__} is not the wheel's"
    for name in set(module.__all__) - OF_EXTRAS:
        getattr(module, name)
importlib.import_module("trainer_server.wire")
assert not {"torch", "transformers", "vllm", "fastapi"} & set(sys.modules), "the client imports packages of the server"

packed = set(zipfile.ZipFile(wheel).namelist())
tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
wanted = {
    name.replace("examples/", "art_examples/")
    for name in tracked
    if name.startswith(("art_langgraph/", "art_mcp/", "trainer_server/"))
    or (name.startswith("examples/") and name.endswith(".py"))
}
assert wanted <= packed, f"the wheel lacks {sorted(wanted - packed)}"

with tempfile.TemporaryDirectory() as folder:  # the template of a program is in the wheel
    (Path(folder) / "langgraph.json").write_text(json.dumps({"graphs": {"chat": "a_module:graph"}}))
    program = Path(sys.executable).parent / "art-langgraph"
    subprocess.run([program, "init", folder], check=True, stdout=subprocess.DEVNULL)
    compile((Path(folder) / "train.py").read_text(), "train.py", "exec")
print(f"{len(packed)} files; public names, no torch, templates: as they should be")
