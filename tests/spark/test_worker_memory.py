"""Python workers of Spark: a garbage collection after a task skips what was imported before it."""

import subprocess
import sys

CREATE = """
import gc
from topics.spark.data_source import TopicsSource
assert gc.get_freeze_count() == 0, "an import must not freeze the objects of a driver"
source = TopicsSource({"subscribe": "orders", "path": "/nowhere"})
once = gc.get_freeze_count()
source.reader(source.schema())
print(once, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_source_freezes_imported_objects_once():
    ran = subprocess.run([sys.executable, "-c", CREATE], capture_output=True, text=True, check=True)
    once, later, collected = map(int, ran.stdout.split())
    assert once == later
    assert once > 10 * collected
