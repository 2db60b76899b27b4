"""A small shop on a server: what the pages of the console have to show."""

import time
from typing import Any

import httpx

QUEUE = {"type": "queue", "max_deliveries": 2, "dead_letter": "emails.dead", "lease_ms": 60_000}


class Shop:
    """Fills a server over HTTP, as its users would."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=20)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.http.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def put(self, topic: str, **config: Any) -> None:
        self.send("PUT", f"/v0/topics/{topic}", config)

    def write(self, topic: str, *data: Any, **shared: Any) -> Any:
        return self.send("POST", f"/v0/topics/{topic}", {"records": [{"data": one} | shared for one in data]})

    def fill(self) -> None:
        """Write orders, prices that a cap evicts, a queue with a dead job, and a router that is held up."""
        self.orders()
        self.prices()
        self.emails()
        self.put("audit", cap_records=40, discard="reject")
        self.send("PUT", "/v0/routers/orders-to-audit", {"source": "orders", "dest": "audit", "from_seq": 0})
        self.send("PUT", "/v0/routers/orders-to-billing", {"source": "orders", "dest": "billing", "from_seq": 0})
        late = {"source": "billing", "dest": "invoices", "filter": ["tag", "Glob", "order-1*"], "from_seq": 0}
        self.send("PUT", "/v0/routers/billing-to-invoices", late)
        self.readers()
        self.schedules()
        self.runs()
        for number in range(12):
            self.put(f"sensor.{number:02d}", durability="memory", ttl_ms=86_400_000)
            self.write(f"sensor.{number:02d}", *({"celsius": 20 + number / 10, "at": at} for at in range(number + 1)))

    def orders(self) -> None:
        for number in range(60):
            order = {
                "order": 7700 + number,
                "sku": ("V60", "AEROPRESS-GO", "SCALE-MINI")[number % 3],
                "qty": 1 + number % 4,
            }
            address = {"customer": {"name": "Ada", "city": "Zürich", "notes": ["gift", None, True]}}
            self.write(
                "orders",
                order | (address if number % 5 == 0 else {}),
                tag=f"order-{number}",
                node=f"till-{number % 2 + 1}",
            )
        self.send("POST", "/v0/topics/orders/delete", {"match": ["tag", "Glob", "order-2*"]})

    def prices(self) -> None:
        self.put("prices", cap_records=400)
        for start in range(0, 1000, 100):
            self.write("prices", *({"sku": "V60", "cents": 2900 + at} for at in range(start, start + 100)))
        self.send("POST", "/v0/topics/prices/delete", {"seqs": list(range(700, 760))})
        self.put("flash-sales", ttl_ms=1)
        self.write("flash-sales", {"percent": 20}, {"percent": 30})
        time.sleep(0.01)
        self.put("flash-sales", ttl_ms=3_600_000)
        self.write("flash-sales", {"percent": 10})

    def readers(self) -> None:
        """Store the positions of consumers: one at the head, one behind, and one that lost records."""
        for topic, name, seq in (("orders", "billing", 60), ("orders", "analytics", 31), ("prices", "ticker", 200)):
            self.send("PUT", f"/v0/topics/{topic}/consumers/{name}", {"seq": seq})

    def schedules(self) -> None:
        """Add a schedule that has run, one that is paused, and one whose topic is gone."""
        record = {"data": {"do": "report"}}
        nightly = {"topic": "reports", "record": record, "cron": "30 2 * * *", "timezone": "Europe/Berlin"}
        self.put("reports", type="queue", max_in_flight=8, rate={"per_s": 5, "burst": 9}, rate_per_key={"per_s": 1})
        self.send("PUT", "/v0/schedules/nightly", nightly)
        self.send("POST", "/v0/schedules/nightly/run")
        self.send("PUT", "/v0/schedules/sweep", nightly | {"cron": None, "timezone": "UTC", "every_ms": 1_800_000})
        self.send("POST", "/v0/schedules/sweep/pause", {})
        for customer in ("customer-7", "customer-7", "customer-8"):
            self.write("reports", {"customer": customer}, key=customer)
        jobs = self.send("POST", "/v0/topics/reports/claim", {"node": "printer-1", "max": 9, "lease_ms": 3_600_000})
        first, second, _ = jobs["claimed"]
        progress = {"share": 0.4, "text": "page 4 of 10"}
        self.send(
            "POST", "/v0/topics/reports/extend", {"node": "printer-1", "seqs": [first["$seq"]], "progress": progress}
        )
        held = {"node": "printer-1", "seqs": [second["$seq"]], "reason": "the printer is out of paper"}
        self.send("POST", "/v0/topics/reports/nack", held | {"delay_ms": 3_600_000})

    def runs(self) -> None:
        """Report runs of pipelines as the pipelines do."""
        now_ms = time.time_ns() // 1_000_000
        gap = {"from_seq": 1, "to_seq": 600, "reason": "cap"}
        topics = [
            {"topic": "orders", "from_seq": 1, "to_seq": 60, "records": 49, "size_bytes": 5400, "lag": 0},
            {"topic": "prices", "from_seq": 601, "to_seq": 1000, "records": 340, "size_bytes": 22_000, "gaps": [gap]},
        ]
        done = {"pipeline": "archive", "run_id": "a1", "state": "done", "started_ms": now_ms - 90_000,
                "ended_ms": now_ms - 84_000, "topics": topics}  # fmt: skip
        problem = {
            "kind": "unreachable",
            "message": "no answer from http://backup:4000",
            "next": "start the other server",
        }
        failed = {"pipeline": "mirror", "run_id": "m1", "state": "failed", "ok": False, "started_ms": now_ms - 30_000,
                  "ended_ms": now_ms - 29_000, "topics": [], "error": problem, "next": problem["next"]}  # fmt: skip
        shared = {
            "ok": True,
            "dry_run": False,
            "looked_at": 2,
            "figures": {},
            "warnings": [],
            "error": None,
            "next": None,
        }
        self.write("sys:pipelines", shared | done, shared | failed)

    def emails(self) -> None:
        self.put("emails", **QUEUE)
        self.write("emails", *({"to": f"customer-{n}@example.com", "template": "receipt"} for n in range(14)))
        self.send(
            "POST", "/v0/topics/emails", {"records": [{"data": {"to": "late@example.com"}, "delay_ms": 3_600_000}]}
        )
        for _ in range(2):
            bad = self.send("POST", "/v0/topics/emails/claim", {"node": "worker-9", "max": 1})["claimed"][0]
            held = {"node": "worker-9", "seqs": [bad["$seq"]], "lease_ids": [bad["lease_id"]]}
            self.send("POST", "/v0/topics/emails/nack", held)
        held = {"node": "worker-1", "max": 3, "lease_ms": 3_600_000}
        self.send("POST", "/v0/topics/emails/claim", held)
