from datetime import timedelta

from celery import chain, chord, group
from django.db import transaction
from django.utils import timezone

from shop.models import Order
from shop.tasks import (
    ask_price,
    charge,
    mail_receipt,
    mail_reminder,
    publish_gallery,
    reserve,
    resize,
)


def buy(email):
    with transaction.atomic():
        order = Order.objects.create(email=email)
        transaction.on_commit(lambda: mail_receipt.delay(order.pk))
    return order


def remind(order, when):
    mail_reminder.apply_async((order.pk,), eta=when, expires=when + timedelta(days=1))


def remind_tomorrow(order):
    mail_reminder.apply_async((order.pk,), countdown=86_400, expires=timezone.now() + timedelta(days=2))


def pay(order):
    return chain(reserve.s(order.pk), charge.s(order.pk)).delay()


def ask_prices(items):
    return group(ask_price.s(item) for item in items).delay()


def make_gallery(order, images):
    return chord(resize.s(image, 200) for image in images)(publish_gallery.s(order.pk))
