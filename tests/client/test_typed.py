"""Reads with `type`: the data of each record as a dataclass, a Struct, a TypedDict or a pydantic model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypedDict

import msgspec
import pytest

from tests.conftest import ServerProcess
from topics.client import Gap, Misfit, Record, Topics, TypedRecord

pydantic = pytest.importorskip("pydantic")


@dataclass
class OrderClass:
    sku: str
    total: int = 0


class OrderStruct(msgspec.Struct):
    sku: str
    total: int = 0


class OrderDict(TypedDict):
    sku: str
    total: int


class OrderModel(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    sku: str
    total: int = 0


@pytest.fixture(scope="module")
def orders(server: ServerProcess) -> Iterator[Topics]:
    with Topics(server.url) as client:
        for data in ({"sku": "V60", "total": 7}, {"sku": 5}, "text", {"sku": "MUG", "total": 9}):
            client.append("orders", data, tag="t", meta={"m": 1})
        yield client


@pytest.mark.parametrize("kind", [OrderClass, OrderStruct, OrderDict, OrderModel])
@pytest.mark.parametrize("call", ["read", "scan", "follow", "watch"])
def test_data_has_the_type_and_a_record_that_does_not_fit_is_an_item(orders: Topics, kind: Any, call: str) -> None:
    wanted: Any = {"orders": None} if call == "watch" else "orders"
    items = [item for item in islice(getattr(orders, call)(wanted, type=kind), 4) if not isinstance(item, Gap)]
    assert [type(item) for item in items] == [TypedRecord, Misfit, Misfit, TypedRecord]
    made = {"sku": "V60", "total": 7}
    assert items[0].data == (made if kind is OrderDict else kind(**made))
    assert items[0].data is items[0].data
    misfit = items[1]
    assert isinstance(misfit, Misfit)
    assert (misfit.seq, misfit.topic, misfit.tag, misfit.meta, bytes(misfit.json)) == (
        2, "orders", "t", {"m": 1}, b'{"sku":5}',
    )  # fmt: skip
    assert "sku" in misfit.error
    with pytest.raises(ValueError, match="record 2 of orders"):
        _ = misfit.data


def test_a_record_is_decoded_as_any_of_these_types(orders: Topics) -> None:
    first = next(iter(orders.read("orders")))
    assert isinstance(first, Record)
    assert first.decode(OrderModel) == OrderModel(sku="V60", total=7)
    assert first.decode(OrderClass) == OrderClass("V60", 7)
