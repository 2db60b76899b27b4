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
from topics.spark.sink.write_options import patient, write_options
from topics.spark.sink.writers import BatchWriter, StreamWriter
from topics.spark.source.batch import TopicsReader
from topics.spark.source.layout import layout_of
from topics.spark.source.schema import shape_of
from topics.spark.source.stream import TopicsStreamReader
from topics.spark.source.unlimited_stream import UnlimitedStreamReader


class TopicsSource(DataSource):
    """`format("topics")` for read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> str:
        options = read_options(self.options)
        return shape_of(options).ddl([one.name for one in layout_of(options).columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicsReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options)
        options = structs.replace(options, connection=patient(options.connection, self.options))
        return (TopicsStreamReader if HAS_READ_LIMITS else UnlimitedStreamReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite=overwrite)
