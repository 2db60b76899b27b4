"""docs/recipes/orchestration.md: its jobs run under stand-ins for the orchestrators, which are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import duckdb
import pytest
import yaml
from deltalake import DeltaTable

from tests.conftest import StartServer
from tests.docs.programs import files_of
from topics.client import Topics

COMMAND = Path(sys.executable).with_name("topics")


class Result(str):
    """The result of a task, in a graph that `>>` builds. The stand-in runs tasks in the order of their calls."""

    def __rshift__(self, other: Any) -> Any:
        return other


def airflow(results: dict[str, Any]) -> dict[str, ModuleType]:
    """Return modules with the parts of Airflow that the page uses: a task runs when it is called."""

    def plain(function: Any) -> Any:
        return lambda *given: results.setdefault(function.__name__, function(*given))

    def bash(*functions: Any, **_: Any) -> Any:
        def run() -> Result:
            [function] = functions
            done = subprocess.run(["bash", "-c", function()], stdout=subprocess.PIPE, text=True, check=True)
            results[function.__name__] = Result(done.stdout.splitlines()[-1])
            return results[function.__name__]

        return run if functions else bash

    plain.bash = bash  # type: ignore[attr-defined]
    sdk = ModuleType("airflow.sdk")
    sdk.__dict__.update(task=plain, dag=lambda **_: lambda function: function)
    return {"airflow": ModuleType("airflow"), "airflow.sdk": sdk}


class Failure(Exception):
    def __init__(self, description: str, allow_retries: bool) -> None:
        super().__init__(description)
        self.allow_retries = allow_retries


def dagster() -> dict[str, ModuleType]:
    module = ModuleType("dagster")
    module.__dict__.update(asset=lambda function: function, MaterializeResult=SimpleNamespace, Failure=Failure)
    return {"dagster": module}


@pytest.fixture
def files(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of the page, with the address of a server that has two orders, and a lake below `tmp_path`."""
    server = start_server(data_dir=tmp_path / "data")
    with Topics(server.url) as topics:
        topics.append("shop:orders", {"sku": "V60", "price": 1299}, tag="web")
        topics.append("shop:orders", {"sku": "V60", "price": 1199}, tag="web")
    monkeypatch.setenv("PATH", str(COMMAND.parent), prepend=":")
    real = {"http://127.0.0.1:4000": server.url, "/lake": str(tmp_path / "lake")}
    found = files_of("recipes/orchestration.md")
    for shown, meant in real.items():
        found = {name: text.replace(shown, meant) for name, text in found.items()}
    # Only the first block of the page runs on Spark: a start for each of these commands would take a minute.
    for name, shown, meant in (
        ("shop_lake.py", " --json", " --no-spark --json"),
        ("shop_assets.py", '"--json"', '"--no-spark", "--json"'),
    ):
        assert shown in found[name]
        found[name] = found[name].replace(shown, meant)
    return found


def test_airflow_tasks_archive_audit_and_pass_the_report(files: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    results: dict[str, Any] = {}
    for name, module in airflow(results).items():
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(files["shop_lake.py"], "shop_lake.py", "exec"), {})
    assert results["summary"] == {"shop:orders": 2}
    assert json.loads(results["audit"])["ok"] is True


def test_dagster_asset_and_dbt_model_read_the_lake(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, module in dagster().items():
        monkeypatch.setitem(sys.modules, name, module)
    defined: dict[str, Any] = {}
    exec(compile(files["shop_assets.py"], "shop_assets.py", "exec"), defined)
    assert defined["shop_lake"]().metadata == {"records": 2, "gaps": 0}

    [source] = yaml.safe_load(files["sources.yml"])["sources"]
    [table] = source["tables"]
    orders = DeltaTable(table["meta"]["delta_table_path"]).to_pyarrow_dataset()  # as the plugin `delta` opens it
    assert {one["name"] for one in table["columns"]} <= set(orders.schema.names)
    query = files["sales.sql"].replace("{{ source('shop', 'orders') }}", "orders")
    assert duckdb.sql(query).fetchall() == [("V60", 2498)]

    with Topics(defined["URL"]) as topics:
        topics.drop_topic("shop:orders")
    with pytest.raises(Failure, match=r"no topic on .* begins with 'shop:'") as failed:
        defined["shop_lake"]()
    assert not failed.value.allow_retries
