"""The class that Spark loads for `format("topics")`: it creates readers and writers from their options."""

from __future__ import annotations

from msgspec import structs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from topics.spark.options import read_options
from topics.spark.pyspark_api import HAS_READ_LIMITS
from topics.spark.sink.write_options import WriteOptions, patient, write_options
from topics.spark.sink.writers import BatchWriter, StreamWriter
from topics.spark.source import table_options
from topics.spark.source.batch import TopicsReader
from topics.spark.source.schema_layout import plain_schema
from topics.spark.source.stream import TopicsStreamReader, UnlimitedStreamReader


class TopicsSource(DataSource):
    """`format("topics")` for read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        table = table_options.of_create_table(self.options)
        schema = plain_schema(read_options(self.options if table is None else table))
        return schema if table is None else table_options.with_options(schema, table)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicsReader(read_options(table_options.for_reading(self.options, schema)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = table_options.for_reading(self.options, schema)
        options = read_options(given)
        options = structs.replace(options, connection=patient(options.connection, given))
        return (TopicsStreamReader if HAS_READ_LIMITS else UnlimitedStreamReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._write_options(schema), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._write_options(schema), schema, overwrite=overwrite)

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = write_options(table_options.for_writing(self.options, schema))
        return structs.replace(options, is_insert=table_options.is_insert(self.options, schema))
