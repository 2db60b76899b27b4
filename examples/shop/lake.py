"""Archive the orders and the page views to a lake of Delta tables, and query the orders there."""

import os

from topics.spark import session, table
from topics.spark.pipelines.archive import archive

url = os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")
lake = os.path.abspath("lake")
spark = session("shop")

report = archive(url=url, lake=lake, topics=["orders", "views"])
for row in report.topics:
    lost = [f"{gap.from_seq} to {gap.to_seq} ({gap.reason})" for gap in row.gaps]
    print(f"{row.topic}: {row.records} records archived; lost before: {', '.join(lost) or 'none'}")

orders = table(spark, "orders", schema="sku STRING, qty INT", lake=lake, lakeOnly="true")
orders.createOrReplaceTempView("orders")
spark.sql("SELECT sku, count(*) AS orders, sum(qty) AS sold FROM orders GROUP BY sku ORDER BY sku").show()
