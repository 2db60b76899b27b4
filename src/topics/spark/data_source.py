"""The class that Spark loads for `format("topics")`: it creates readers and writers from their options."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import structs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from topics.spark.options import BadOption, WriteOptions, patient, read_options, write_options
from topics.spark.sink.writers import BatchWriter, StreamWriter
from topics.spark.source.readers import FilteringReader, TopicsReader, TopicsStreamReader
from topics.spark.source.schema_layout import plain_schema

# --- options of a table in Spark's catalog: `CREATE TABLE orders USING topics OPTIONS (url '…', subscribe 'orders')`
#
# Spark passes the options of a table to a Python source only once, when CREATE TABLE asks for the schema. Later it
# passes the schema alone. So the schema carries the options, as metadata of its first column. Tables are for reading: a
# writer does not get the schema of its table, but that of the rows, which may come from another one.

KEY = "topics"
PREFIX = "option."  # CREATE TABLE passes each option twice, once with this prefix, between properties of the table
_CHOICES = ("subscribe", "subscribeprefix", "subscribepattern", "path")


def of_create_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of CREATE TABLE, or None if the options are those of a DataFrame or a view."""
    keys = list(given)
    if not any(key.lower() == "provider" for key in keys):
        return None
    return {key[len(PREFIX) :]: given[key] for key in keys if key.lower().startswith(PREFIX)}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with the options in its metadata. Raise `BadOption` for a key: catalogs are readable."""
    if any(name.lower() == "token" for name in options):
        raise BadOption("token: the catalog would store the key in plain text; use tokenFile for a table")
    first, *rest = schema.fields
    metadata = {**(first.metadata or {}), KEY: msgspec.json.encode(dict(options)).decode()}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def for_reading(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a reader: those of the query, over those of the table if the schema has some."""
    stored = _stored(schema)
    if stored is None:
        if not len(given):
            raise BadOption(
                "the table has no options: Spark drops them if CREATE TABLE lists columns; create it without a list of "
                "columns, as a temporary view, or with topics.spark.register"
            )
        return given
    if any(key.lower() in _CHOICES for key in given):
        return given
    return _merged(stored, given)


def _stored(schema: StructType) -> dict[str, str] | None:
    for field in schema.fields:
        if (text := (field.metadata or {}).get(KEY)) is not None:
            return msgspec.json.decode(text, type=dict[str, str])
    return None


def _merged(stored: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    own = {key.lower() for key in given}
    return {key: stored[key] for key in stored if key.lower() not in own} | {key: given[key] for key in given}


class TopicsSource(DataSource):
    """`format("topics")` for read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        table = of_create_table(self.options)
        schema = plain_schema(read_options(self.options if table is None else table))
        return schema if table is None else with_options(schema, table)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(for_reading(self.options, schema))
        return (FilteringReader if options.push_filters else TopicsReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = for_reading(self.options, schema)
        options = read_options(given)
        options = structs.replace(options, connection=patient(options.connection, given))
        return TopicsStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._write_options(schema), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._write_options(schema), schema, overwrite=overwrite)

    def _write_options(self, schema: StructType) -> WriteOptions:
        if _stored(schema) is not None and not any(key.lower() in ("url", "topic") for key in self.options):
            raise BadOption('a table of topics is for reading; append rows with df.write.format("topics")')
        return write_options(self.options)
