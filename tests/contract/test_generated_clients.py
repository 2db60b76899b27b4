"""Clients that generators for Python, TypeScript and Go make from the document, against a real server.

The generators are installed for the test, from the package indexes that this machine is set up for.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.torture

INSTALL_S, RUN_S = 600, 300

PYTHON_PROGRAM = """
import sys
from topics_client import Client
from topics_client.api.queues import ack, claim, list_jobs
from topics_client.api.records import append, diff, scan
from topics_client.api.topics import get_topic, put_topic
from topics_client.models import (
    AckRequest, ClaimRequest, ConfigPatch, ConfigPatchType, DiffRequest, ErrorAnswer, NewRecord, ScanRequest,
    WriteRequest,
)

client = Client(base_url=sys.argv[1])
assert put_topic.sync("mail", client=client, body=ConfigPatch(type_=ConfigPatchType.QUEUE)).created
records = [NewRecord(data={"to": name}, tag=name) for name in ("ann", "bob")]
assert append.sync("mail", client=client, body=WriteRequest(records, node="shop")).seqs == [1, 2]
page = diff.sync("mail", client=client, body=DiffRequest(from_seq=1, include_tags=True))
[record] = page.records
assert (record.seq, record.tag, record.data, page.caught_up) == (2, "bob", {"to": "bob"}, True)
[job] = claim.sync("mail", client=client, body=ClaimRequest("worker")).claimed
assert (job.seq, job.node) == (1, "shop")
jobs = list_jobs.sync("mail", client=client).jobs
assert [(job.state, job.node or None) for job in jobs] == [("in_flight", "worker"), ("ready", None)]
assert jobs[0].additional_properties["$node"] == "shop"
assert ack.sync("mail", client=client, body=AckRequest("worker", [1])).acked == 1
assert len(scan.sync("mail", client=client, body=ScanRequest()).splitlines()) == 2
missing = get_topic.sync("nowhere", client=client)
assert isinstance(missing, ErrorAnswer) and missing.error.code == "topic_not_found"
print("done")
"""

TYPESCRIPT_PROGRAM = """
import createClient from "openapi-fetch"
import type { paths } from "./types.js"

const client = createClient<paths>({ baseUrl: process.argv[2] })

function expect(seen: unknown, wanted: unknown): void {
  const [left, right] = [JSON.stringify(seen), JSON.stringify(wanted)]
  if (left !== right) throw new Error(`${left}, not ${right}`)
}

const mail = { path: { topic: "mail" } }
const made = await client.PUT("/v0/topics/{topic}", { params: mail, body: { type: "queue" } })
expect(made.data?.created, true)
const records = [{ data: { to: "ann" }, tag: "ann" }, { data: { to: "bob" }, tag: "bob" }]
const written = await client.POST("/v0/topics/{topic}", { params: mail, body: { records, node: "shop" } })
expect(written.data?.seqs, [1, 2])
const page = await client.POST("/v0/topics/{topic}/diff", { params: mail, body: { from_seq: 1, include_tags: true } })
expect(page.data?.records.map((record) => [record.$seq, record.$tag, record.data]), [[2, "bob", { to: "bob" }]])
const claimed = await client.POST("/v0/topics/{topic}/claim", { params: mail, body: { node: "worker" } })
expect(claimed.data?.claimed.map((job) => [job.$seq, job.$node]), [[1, "shop"]])
const jobs = await client.GET("/v0/topics/{topic}/jobs", { params: { ...mail, query: { page_size: 10 } } })
expect(jobs.data?.jobs.map((job) => [job.state, job.node ?? null]), [["in_flight", "worker"], ["ready", null]])
const missing = await client.GET("/v0/topics/{topic}", { params: { path: { topic: "nowhere" } } })
expect(missing.error?.error.code, "topic_not_found")
console.log("done")
"""


GO_PROGRAM = """
package main

import (
	"context"
	"fmt"
	"os"

	"example.org/try/topics"
)

func expect(seen any, wanted any, err error) {
	if left, right := fmt.Sprint(seen), fmt.Sprint(wanted); err != nil || left != right {
		panic(fmt.Sprintf("%s, not %s: %v", left, right, err))
	}
}

func main() {
	background := context.Background()
	client, err := topics.NewClientWithResponses(os.Args[1])
	expect(err, nil, err)
	kind, node, from, tags := topics.ConfigPatchTypeQueue, "shop", 1, true
	made, err := client.PutTopicWithResponse(background, "mail", topics.ConfigPatch{Type: &kind})
	expect(made.JSON201.Created, true, err)
	ann, bob := "ann", "bob"
	records := []topics.NewRecord{{Data: map[string]string{"to": ann}, Tag: &ann}, {Data: nil, Tag: &bob}}
	request := topics.WriteRequest{Records: records, Node: &node}
	written, err := client.AppendWithResponse(background, "mail", nil, request)
	expect(written.JSON200.LastSeq, 2, err)
	wanted := topics.DiffRequest{FromSeq: &from, IncludeTags: &tags}
	page, err := client.DiffWithResponse(background, "mail", wanted)
	expect(page.JSON200.Records[0].Seq, 2, err)
	expect(*page.JSON200.Records[0].Tag, "bob", err)
	claimed, err := client.ClaimWithResponse(background, "mail", topics.ClaimRequest{Node: "worker"})
	expect(claimed.JSON200.Claimed[0].Data, map[string]any{"to": "ann"}, err)
	done, err := client.AckWithResponse(background, "mail", topics.AckRequest{Node: "worker", Seqs: []int{1}})
	expect(done.JSON200.Acked, 1, err)
	missing, err := client.GetTopicWithResponse(background, "nowhere", nil)
	expect(missing.JSON404.Error.Code, "topic_not_found", err)
	fmt.Println("done")
}
"""


def run(
    command: Sequence[object], *, cwd: Path, timeout_s: int = RUN_S, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=timeout_s,
        env=os.environ | env,
    )  # fmt: skip


def installed(command: Sequence[object], *, cwd: Path) -> None:
    """Run the command of a package manager. Skip the test if it cannot get the packages."""
    done = run(command, cwd=cwd, timeout_s=INSTALL_S)
    if done.returncode:
        pytest.skip(f"the generator cannot be installed, is the package index reachable? {done.stderr.strip()[-300:]}")


@pytest.fixture
def document(start_server, connect, tmp_path: Path) -> tuple[str, Path]:
    """The address of a server, and the file with its document."""
    server = start_server()
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(connect(server).get("/v0/openapi.json")))
    return server.url, path


def test_python_client_generates_without_warnings_and_works(document: tuple[str, Path], tmp_path: Path):
    url, path = document
    venv = tmp_path / "venv"
    assert run([sys.executable, "-m", "venv", venv], cwd=tmp_path).returncode == 0
    installed([venv / "bin" / "pip", "install", "--quiet", "openapi-python-client==0.29.*"], cwd=tmp_path)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the generator formats with ruff
    generator = venv / "bin" / "openapi-python-client"
    made = run([generator, "generate", "--path", path, "--output-path", tmp_path / "made"], cwd=tmp_path, PATH=tools)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "warning" not in (made.stdout + made.stderr).lower(), made.stdout + made.stderr
    program = tmp_path / "made" / "program.py"
    program.write_text(PYTHON_PROGRAM)
    ran = run([venv / "bin" / "python", program, url], cwd=program.parent, PYTHONPATH=str(program.parent))
    assert ran.stdout == "done\n", ran.stderr


def test_typescript_types_generate_without_warnings_and_work(document: tuple[str, Path], tmp_path: Path):
    url, path = document
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the TypeScript generator cannot be tried")
    (tmp_path / "package.json").write_text('{"type": "module", "private": true}')
    packages = ["openapi-typescript@7", "openapi-fetch@0.15", "typescript@5", "@types/node@20"]
    installed([npm, "install", "--no-fund", "--no-audit", *packages], cwd=tmp_path)
    tools = tmp_path / "node_modules" / ".bin"
    made = run([tools / "openapi-typescript", path, "-o", tmp_path / "types.ts"], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert not [word for word in ("warn", "⚠", "error") if word in (made.stdout + made.stderr).lower()], made
    (tmp_path / "program.ts").write_text(TYPESCRIPT_PROGRAM)
    flags = ["--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"]
    compiled = run([tools / "tsc", *flags, "program.ts"], cwd=tmp_path)
    assert compiled.returncode == 0, compiled.stdout
    ran = run(["node", "program.js", url], cwd=tmp_path)
    assert ran.stdout == "done\n", ran.stderr


def test_go_client_generates_compiles_and_works(document: tuple[str, Path], tmp_path: Path):
    url, path = document
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: the generator for it cannot be tried")
    package = tmp_path / "try" / "topics"
    package.mkdir(parents=True)
    (package.parent / "go.mod").write_text("module example.org/try\n\ngo 1.24\n")
    (package.parent / "main.go").write_text(GO_PROGRAM)
    generator = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
    flags = ["-generate", "types,client", "-package", "topics", "-o", package / "topics.go"]
    installed([go, "run", generator, *flags, path], cwd=tmp_path)
    assert (package / "topics.go").stat().st_size > 100_000
    installed([go, "mod", "tidy"], cwd=package.parent)
    checked = run([go, "vet", "./..."], cwd=package.parent, timeout_s=INSTALL_S)
    assert checked.returncode == 0, checked.stderr
    ran = run([go, "run", ".", url], cwd=package.parent, timeout_s=INSTALL_S)
    assert ran.stdout == "done\n", ran.stderr
