"""Typed values: with the rich serializer, dataclasses, dates and decimals keep their types."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import project

project.setup(serializer="rich")

from horsies_django import task
from horsies_django.testing import drain


@dataclass
class Parcel:
    number: UUID
    weight: Decimal
    posted: date


@task
def deliver(parcel: Parcel, after: timedelta) -> datetime:
    print(parcel)
    print(f"{parcel.weight * 2} kg for two, delivered after {after.days} days")
    return datetime.combine(parcel.posted, datetime.min.time(), UTC) + after


parcel = Parcel(UUID(int=7), Decimal("1.50"), date(2026, 3, 1))
handle = deliver.send(parcel, after=timedelta(days=2))
drain()
print(repr(handle.value()))

# Output:
# Parcel(number=UUID('00000000-0000-0000-0000-000000000007'), weight=Decimal('1.50'), posted=datetime.date(2026, 3, 1))
# 3.00 kg for two, delivered after 2 days
# datetime.datetime(2026, 3, 3, 0, 0, tzinfo=datetime.timezone.utc)
