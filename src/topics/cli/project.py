"""The files that `topics pipeline init` lays out."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from topics.cli.fields import Field

SPEC = """\
name: {name}

# Where Spark keeps how far each flow has come, and its tables. Remove the folder, and the next run reads everything
# again from the beginning. It must be an absolute URL: change it when the project moves.
storage: {storage}

libraries:
  - glob:
      include: transformations/**

configuration:
  spark.sql.session.timeZone: UTC
  spark.sql.shuffle.partitions: "2"
"""

FLOWS = '''\
"""From the topic {topic} into tables, and on to the topic {into}.

A run takes up what has come since the last one, and ends. All files in this folder belong to the pipeline: change
these, add more. A view is a step on the way and is stored nowhere; a table is kept; a sink is where rows leave Spark.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topics.spark.declarative import kept

spark = SparkSession.active()

TOPICS = {{"url": os.environ.get("TOPICS_URL", {url!r})}}
if "TOPICS_TOKEN_FILE" in os.environ:  # a file that holds the API key; the key itself belongs into no project
    TOPICS["tokenFile"] = os.environ["TOPICS_TOKEN_FILE"]


@dp.temporary_view
def incoming() -> DataFrame:
    """The topic as it grows. Where records were lost (a cap, a TTL) before they came here, a `gap` row says so."""
    return (
        spark.readStream.format("topics")
        .options(**TOPICS)
        .option("subscribe", {topic!r})
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")
        .load()
    )


@dp.table(table_properties=kept("records"))
def records() -> DataFrame:
    """Every record, once. `data` and `meta` are JSON text; `gap_to` and `reason` are those of gaps."""
    columns = ["seq", "ts", "tag", "node", "data", "meta", "kind", "gap_to", "reason"]
    return spark.readStream.table("incoming").select(*columns)


@dp.materialized_view(table_properties=kept("per_minute", anew=True))
def per_minute() -> DataFrame:
    """How many records there were, by minute and tag; computed anew by each run."""
    rows = spark.read.table("records").where("kind = 'record'")
    return rows.groupBy(F.date_trunc("minute", "ts").alias("minute"), "tag").agg(F.count("*").alias("records"))


dp.create_sink("back", "topics", {{**TOPICS, "topic": {into!r}}})


@dp.append_flow(target="back")
def copy() -> DataFrame:
    """Back into a topic. By `topic` and `seq` the sink knows what it has written already: nothing comes twice."""
    rows = spark.readStream.table("incoming")
    # rows = rows.where("tag = 'web' OR kind = 'gap'")                         only some
    # rows = rows.withColumn("data", F.expr("get_json_object(data, '$.a')"))   or something else
    return rows
'''

FIELDS = '''\
"""The fields of `data` as columns, as {sampled} records of {topic} had them when this file was made.

Change types and columns as you like: the table is computed anew by each run. What a record does not have is NULL; one
that does not fit has its text in `_malformed`, too.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topics.spark.declarative import kept

spark = SparkSession.active()

TYPES = [
{types}
    "`_malformed` STRING",
]


@dp.materialized_view(table_properties=kept("fields", anew=True))
def fields() -> DataFrame:
    """A row for each record, a column for each field."""
    value = F.from_json("data", ", ".join(TYPES), {{"columnNameOfCorruptRecord": "_malformed"}})
    rows = spark.read.table("records").where("kind = 'record'").withColumn("value", value)
{texts}    return rows.select(
        "seq",
        "ts",
        "node",
        "tag",
{columns}
        F.col("value").getField("_malformed").alias("_malformed"),
    )
'''

TEXTS = """\
    # Names that a schema cannot have, or that differ in case only, are looked up as they are.
    rows = rows.withColumn("texts", F.from_json("data", "MAP<STRING, STRING>"))
"""

README = """\
# {name}

A project of [Spark Declarative Pipelines](https://spark.apache.org/docs/latest/declarative-pipelines-programming-guide.html),
made by `topics pipeline init`. It reads the topic `{topic}` of {url}.

| it makes | |
|---|---|
| table `records` | every record: `seq`, `ts`, `tag`, `node`, `data`, `meta`; a row of kind `gap` for what was lost |
| table `per_minute` | how many there were, by minute and tag |
{typed}| topic `{into}` | a copy of each record, written once |

## Run it

In this folder, in the Python environment that has topics:

    pip install 'topics[spark]' 'pyspark[pipelines]'
    spark-pipelines run

Run it as often as you like: each run takes up what has come since the last one. `spark-pipelines dry-run` checks the
flows without running them.

- `TOPICS_URL=http://…` names another server. `TOPICS_TOKEN_FILE=/path/to/file` names a file with the API key, which
  needs `read` for `{topic}` and `write` for `{into}`.
- Without a Java, use the one that came with topics:
  `export JAVA_HOME=$(python -c 'from topics.spark.java import bundled_java; print(bundled_java())')`
- Settings of Spark go on the command line: `spark-pipelines run --conf spark.executor.memory=4g`.
- `BindException … 15002`: another pipeline runs on this machine, and Spark has one port for them. Wait for it.

## Look at it

The tables are folders of Parquet files. With DuckDB, for one of many:

    duckdb -c "SELECT * FROM 'storage/tables/records/*.parquet' ORDER BY seq"

And what was written back: `curl {url}/v0/topics/{into}/diff -H 'content-type: application/json' -d '{{}}'`

## Change it

`transformations/` has the flows, as short Python files. To begin anew, stop the pipeline and remove `storage/`:
everything is read again from the first record that the topic still has, and copied to `{into}` once more.{later}

Where Spark has a metastore (`--conf spark.sql.catalogImplementation=hive`, or a cluster's own) the tables are that
one's, by their names, and not in `storage/`. Choose before the first run.
"""

TYPED = "| table `fields` | the fields of `data` as typed columns |\n"
LATER = """

There is no table of the fields of `data`, since no record was there to see when this was made. Once there are some,
`topics pipeline init` with `--force` and the same options adds it (and writes the other files as they were made)."""

IGNORED = "storage/\nspark-warehouse/\nmetastore_db/\nderby.log\n__pycache__/\n"


class Project(Struct, frozen=True, kw_only=True):
    """What a project is about."""

    directory: Path
    url: str
    topic: str
    into: str
    fields: list[Field]
    sampled: int = 0

    def files(self) -> dict[str, str]:
        """What it consists of, by path."""
        facts = {
            "name": re.sub(r"\W+", "_", self.directory.resolve().name).strip("_") or "pipeline",
            "storage": _literal(f"file://{self.directory.resolve() / 'storage'}"),  # Spark decodes no %20
            "url": self.url,
            "topic": self.topic,
            "into": self.into,
            "typed": TYPED if self.fields else "",
            "later": "" if self.fields else LATER,
        }
        typed = {"transformations/fields.py": self._typed()} if self.fields else {}
        return {
            "README.md": README.format(**facts),
            "spark-pipeline.yml": SPEC.format(**facts),
            "transformations/flows.py": FLOWS.format(**facts),
            **typed,
            ".gitignore": IGNORED,
        }

    def _typed(self) -> str:
        in_schema = [f"`{field.name}` {field.type}" for field in self.fields if not field.by_key]
        return FIELDS.format(
            sampled=self.sampled,
            topic=self.topic,
            types="\n".join(f"    {_literal(one)}," for one in in_schema),
            texts=TEXTS if any(field.by_key for field in self.fields) else "",
            columns="\n".join(f"        {_expression(field)}," for field in self.fields),
        )


def _expression(field: Field) -> str:
    if not field.by_key:
        return f'F.col("value").getField({_literal(field.name)}).alias({_literal(field.column)})'
    text = f'F.col("texts").getItem({_literal(field.name)})'
    cast = "" if field.type == "STRING" else f'.try_cast("{field.type}")'
    return f"{text}{cast}.alias({_literal(field.column)})"


def _literal(text: str) -> str:
    """Python for a text, in double quotes where that needs no escapes, as formatters have it."""
    return f'"{text}"' if text.isprintable() and not set(text) & set('"\\') else repr(text)
