"""`topics pipeline init`: a project of Spark Declarative Pipelines with topics at both ends, ready to run."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from topics.cli import pipeline
from topics.errors import TopicsError
from topics.model.names import check_topic

EXIT_DONE, EXIT_USAGE = 0, 2

SPEC = """\
name: {name}

# Where Spark keeps how far each flow has come. Remove it, and everything is read again from the beginning.
storage: {storage}

libraries:
  - glob:
      include: transformations/**

configuration:
  spark.sql.shuffle.partitions: "2"
"""

FLOWS = '''\
"""Orders that are worth a look, from the topic {topic} to the topic {into}.

A view is a step on the way and is stored nowhere; a sink is where rows leave Spark. A run takes up what has come since
the last one. Add files beside this one: every flow in this folder belongs to the pipeline.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

TOPICS = {{"url": os.environ.get("TOPICS_URL", "{url}")}}
if "TOPICS_TOKEN_FILE" in os.environ:  # a file that holds the API key
    TOPICS["tokenFile"] = os.environ["TOPICS_TOKEN_FILE"]

dp.create_sink("large_orders", "topics", {{**TOPICS, "topic": "{into}"}})


@dp.temporary_view
def orders() -> DataFrame:
    """Every record of the topic, with the fields of its data as columns."""
    rows = (
        spark.readStream.format("topics")
        .options(**TOPICS)
        .option("subscribe", "{topic}")
        .option("startingOffsets", "earliest")
        .load()
    )
    return rows.selectExpr("topic", "seq", "tag", "data", "from_json(data, 'item STRING, total DOUBLE') AS fields")


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """`topic` and `seq` stay: by them the sink knows what it has written already, so that nothing comes twice."""
    return (
        spark.readStream.table("orders")
        .where("fields.total >= 100")
        .selectExpr("topic AS source_topic", "seq", "tag", "data")
    )
'''

README = """\
# {name}

A pipeline of Spark Declarative Pipelines, made by `topics pipeline init`. It reads the topic `{topic}` of
{url} and writes the orders of 100 and more to the topic `{into}`.

    pip install 'topics[spark]' 'pyspark[pipelines]'
    curl {url}/v0/topics/{topic} -H 'content-type: application/json' \\
      -d '{{"records": [{{"data": {{"item": "mug", "total": 9}}}}, {{"data": {{"item": "roaster", "total": 480}}}}]}}'
    spark-pipelines run
    curl {url}/v0/topics/{into}/diff -H 'content-type: application/json' -d '{{}}'

Run it as often as you like: each run takes up what has come since the last one, and writes it once.

- `spark-pipelines dry-run` checks the flows without running them.
- `TOPICS_URL` names another server, `TOPICS_TOKEN_FILE` a file with an API key.
- Settings of Spark go on the command line: `spark-pipelines run --conf spark.executor.memory=4g`.
- With tables of its own (`dp.table`, `dp.materialized_view`) a second run needs
  `--conf spark.sql.catalogImplementation=hive`: without it Spark forgets between runs which tables there are.
"""

IGNORED = "storage/\nspark-warehouse/\nmetastore_db/\nderby.log\n__pycache__/\n"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "lay out a project of Spark Declarative Pipelines that reads and writes topics"
    parser = subparsers.add_parser("init", help=text, description=f"{text[:1].upper()}{text[1:]}.", allow_abbrev=False)
    parser.add_argument("directory", type=Path, metavar="DIR", help="made if it is not there; must be empty")
    parser.add_argument("--url", default=pipeline.DEFAULT_URL, metavar="U", help="server [%(default)s]")
    parser.add_argument("--topic", default="orders", metavar="T", help="topic to read [%(default)s]")
    parser.add_argument("--into", metavar="T", help="topic to write [the one to read, and .large]")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    directory: Path = args.directory
    into = args.into or f"{args.topic}.large"
    try:
        check_topic(args.topic, field="--topic")
        check_topic(into, field="--into")
    except TopicsError as error:
        return _refused(error.message, "give a name that a topic can have")
    if into == args.topic:
        return _refused("--topic and --into are the same: it would read what it writes", "give another --into")
    if not re.fullmatch(r"https?://[^\s\"'\\]+", args.url):
        return _refused(f"{args.url!r} is no URL of a server", "give one like http://127.0.0.1:4000")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        return _refused(f"{directory} is there and not empty", "give a directory that is not, or remove it")
    for name, content in files(directory, url=args.url.rstrip("/"), topic=args.topic, into=into).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        print(f"made {path}")
    print(f"\nnow: cd {directory} && spark-pipelines run   (README.md says more)")
    return EXIT_DONE


def files(directory: Path, *, url: str, topic: str, into: str) -> dict[str, str]:
    """The project, by path."""
    name = re.sub(r"\W+", "_", directory.resolve().name).strip("_") or "pipeline"
    facts = {"name": name, "storage": (directory.resolve() / "storage").as_uri()}
    facts |= {"url": url, "topic": topic, "into": into}
    return {
        "spark-pipeline.yml": SPEC.format(**facts),
        "transformations/orders.py": FLOWS.format(**facts),
        "README.md": README.format(**facts),
        ".gitignore": IGNORED,
    }


def _refused(what: str, next_step: str) -> int:
    print(f"topics: {what}\nnext: {next_step}", file=sys.stderr)
    return EXIT_USAGE
