from datetime import timedelta
from smtplib import SMTPException
from unittest import mock

from config.celery import app
from django.test import TestCase
from django.utils import timezone

from shop import services, tasks
from shop.models import Note, Order


class ShopTests(TestCase):
    """With eager tasks, each call runs at once, and its retries without a wait."""

    def setUp(self):
        app.conf.task_always_eager = True
        app.conf.task_store_eager_result = False

    def test_a_receipt_is_sent_after_the_commit_and_again_after_an_error(self):
        with (
            mock.patch("shop.partners.deliver", side_effect=[SMTPException("busy"), None]) as deliver,
            self.captureOnCommitCallbacks(execute=True),
        ):
            services.buy("ada@example.org")
        assert deliver.call_count == 2

    def test_a_receipt_fails_after_three_retries(self):
        order = Order.objects.create(email="ada@example.org")
        with mock.patch("shop.partners.deliver", side_effect=SMTPException("busy")) as deliver:
            result = tasks.mail_receipt.delay(order.pk)
        assert deliver.call_count == 4
        assert result.failed()
        assert Note.objects.get().text == "failed: shop.tasks.mail_receipt: SMTPException"

    def test_the_stock_is_asked_for_again_after_an_error_of_the_connection(self):
        with mock.patch("shop.partners.stock_of", side_effect=[ConnectionResetError(), ConnectionResetError(), 7]):
            assert tasks.sync_stock.delay("book").get() == 7

    def test_the_stock_is_not_asked_for_again_after_another_error(self):
        with mock.patch("shop.partners.stock_of", side_effect=ValueError) as stock_of:
            assert tasks.sync_stock.delay("book").failed()
        assert stock_of.call_count == 1

    def test_reminders_are_sent_later(self):
        order = Order.objects.create(email="ada@example.org")
        with mock.patch.object(tasks.mail_reminder, "apply_async") as apply_async:
            services.remind_tomorrow(order)
            services.remind(order, timezone.now() + timedelta(hours=2))
        assert apply_async.call_count == 2
        with mock.patch("shop.partners.deliver") as deliver:
            services.remind_tomorrow(order)
        deliver.assert_called_once_with("ada@example.org")

    def test_an_order_is_reserved_and_then_charged(self):
        order = Order.objects.create(email="ada@example.org")
        assert services.pay(order).get() == f"order {order.pk}: 25"
        order.refresh_from_db()
        assert order.state == "paid 25"

    def test_prices_are_asked_for_in_a_group(self):
        with mock.patch("shop.partners.price_of", side_effect=[10, 20, 30]):
            assert services.ask_prices(["a", "b", "c"]).get() == [10, 20, 30]

    def test_a_gallery_gets_all_images(self):
        order = Order.objects.create(email="ada@example.org")
        assert services.make_gallery(order, ["x", "y"]).get() == 2
        assert Note.objects.get().text == f"gallery of {order.pk}: x-200.png, y-200.png"

    def test_a_failed_import_is_reported_by_its_class_and_by_the_signal(self):
        tasks.import_orders.delay(["ada@example.org", "bob"])
        assert {note.text for note in Note.objects.all()} == {
            "shop.tasks.import_orders(['ada@example.org', 'bob'],) needs you: not an address: bob",
            "failed: shop.tasks.import_orders: ValueError",
        }

    def test_mails_and_reports_have_their_queues(self):
        route = app.amqp.router.route
        assert route({}, "shop.tasks.mail_receipt")["queue"].name == "emails"
        assert route({}, "shop.tasks.mail_reminder")["queue"].name == "emails"
        assert route({}, "shop.tasks.nightly_report")["queue"].name == "reports"
        assert route({}, "shop.tasks.charge")["queue"].name == "celery"

    def test_beat_sends_the_report_and_the_stock(self):
        schedule = app.conf.beat_schedule
        assert set(schedule) == {"nightly report", "stock of books"}
        for entry in schedule.values():
            assert entry["task"] in app.tasks
