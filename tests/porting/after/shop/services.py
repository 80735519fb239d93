from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from horsies_django import Workflow
from shop.models import Order
from shop.tasks import ask_price, charge, mail_receipt, mail_reminder, publish_gallery, reserve, resize


def buy(email):
    with transaction.atomic():
        order = Order.objects.create(email=email)
        mail_receipt.send(order.pk)
    return order


def remind(order, when):
    return mail_reminder.with_options(good_until=when + timedelta(days=1)).schedule(when, order.pk)


def remind_tomorrow(order):
    return mail_reminder.with_options(good_until=timezone.now() + timedelta(days=2)).schedule(86_400, order.pk)


def pay(order):
    reserved = reserve.node()(order_id=order.pk)
    charged = charge.node()(price=reserved.value, order_id=order.pk)
    return Workflow("pay", [reserved, charged], output=charged).start()


def ask_prices(items):
    return ask_price.send_many({"item": item} for item in items)


def make_gallery(order, images):
    files = [resize.node()(image=image, width=200) for image in images]
    published = publish_gallery.node()(files=[file.value for file in files], order_id=order.pk)
    return Workflow("gallery", [*files, published], output=published).start()
