from datetime import timedelta
from smtplib import SMTPException
from unittest import mock

from django.test import TestCase
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.models import Schedule
from horsies_django.testing import assert_enqueued, drain, immediate, travel
from shop import services, tasks
from shop.models import Note, Order


class ShopTests(TestCase):
    def test_a_receipt_is_sent_after_the_commit_and_again_after_an_error(self):
        with mock.patch("shop.partners.deliver", side_effect=[SMTPException("busy"), None]) as deliver:
            services.buy("ada@example.org")
            drain()
            assert deliver.call_count == 1
            drain(retries=True)
        assert deliver.call_count == 2

    def test_a_receipt_fails_after_three_retries(self):
        order = Order.objects.create(email="ada@example.org")
        with mock.patch("shop.partners.deliver", side_effect=SMTPException("busy")) as deliver:
            handle = tasks.mail_receipt.send(order.pk)
            for minutes, calls in [(0, 1), (0.9, 1), (1.1, 2), (3.2, 3), (7.3, 4), (60, 4)]:
                with travel(minutes=minutes):
                    drain()
                assert deliver.call_count == calls
        assert handle.status() == TaskStatus.FAILED
        assert Note.objects.get().text == "failed: shop.tasks.mail_receipt: SMTPException"

    def test_a_receipt_is_not_sent_again_after_another_error(self):
        with mock.patch("shop.partners.deliver", side_effect=ValueError) as deliver:
            services.buy("ada@example.org")
            drain(retries=True)
        assert deliver.call_count == 1

    def test_the_stock_is_asked_for_again_after_an_error_of_the_connection(self):
        handle = tasks.sync_stock.send("book")
        with mock.patch("shop.partners.stock_of", side_effect=[ConnectionResetError(), ConnectionResetError(), 7]):
            drain(retries=True)
        assert handle.value(0) == 7

    def test_the_stock_is_not_asked_for_again_after_another_error(self):
        handle = tasks.sync_stock.send("book")
        with mock.patch("shop.partners.stock_of", side_effect=ValueError) as stock_of:
            drain(retries=True)
        assert stock_of.call_count == 1
        assert handle.status() == TaskStatus.FAILED

    def test_prices_are_asked_for_ten_times_a_minute(self):
        handles = services.ask_prices(["a", "b", "c"])
        with mock.patch("shop.partners.price_of", side_effect=[10, 20, 30]) as price_of:
            drain()
            assert price_of.call_count == 1
            with travel(seconds=6):
                drain()
                assert price_of.call_count == 2
            with travel(seconds=12):
                drain()
        assert [handle.value(0) for handle in handles] == [10, 20, 30]

    def test_reminders_are_sent_later(self):
        order = Order.objects.create(email="ada@example.org")
        services.remind_tomorrow(order)
        services.remind(order, timezone.now() + timedelta(hours=2))
        assert_enqueued(tasks.mail_reminder, args=[order.pk], queue="emails", count=2)
        with mock.patch("shop.partners.deliver") as deliver:
            drain()
            assert deliver.call_count == 0
            with travel(hours=3):
                drain()
            assert deliver.call_count == 1
            with travel(days=1, minutes=1):
                drain()
        assert deliver.call_count == 2

    def test_a_reminder_that_is_late_is_not_sent(self):
        handle = services.remind_tomorrow(Order.objects.create(email="ada@example.org"))
        with mock.patch("shop.partners.deliver") as deliver, travel(days=3):
            drain()
        assert deliver.call_count == 0
        assert handle.status() == TaskStatus.EXPIRED

    def test_an_order_is_reserved_and_then_charged(self):
        order = Order.objects.create(email="ada@example.org")
        run = services.pay(order)
        drain()
        assert run.get(0).unwrap() == f"order {order.pk}: 25"
        order.refresh_from_db()
        assert order.state == "paid 25"

    def test_a_gallery_gets_all_images(self):
        order = Order.objects.create(email="ada@example.org")
        run = services.make_gallery(order, ["x", "y"])
        drain()
        assert run.get(0).unwrap() == 2
        assert Note.objects.get().text == f"gallery of {order.pk}: x-200.png, y-200.png"

    def test_a_failed_import_is_reported_by_its_hook_and_by_the_signal(self):
        tasks.import_orders.send(["ada@example.org", "bob"])
        drain()
        assert {note.text for note in Note.objects.all()} == {
            "shop.tasks.import_orders(['ada@example.org', 'bob'],) needs you: not an address: bob",
            "failed: shop.tasks.import_orders: ValueError",
        }

    def test_with_eager_tasks_an_import_has_happened_when_the_call_returns(self):
        with immediate():
            tasks.import_orders.send(["ada@example.org"])
            assert Order.objects.get().email == "ada@example.org"

    def test_mails_and_reports_have_their_queues(self):
        services.buy("ada@example.org")
        tasks.nightly_report.send("sales")
        tasks.reserve.send(1)
        assert_enqueued(tasks.mail_receipt, queue="emails", count=1)
        assert_enqueued(tasks.nightly_report, queue="reports", count=1)
        assert_enqueued(tasks.reserve, queue="default", count=1)

    def test_each_worker_sends_the_report_and_the_stock(self):
        drain(schedules=True)
        assert set(Schedule.objects.values_list("name", "timing")) == {
            ("nightly report", "cron:30 2 * * *"),
            ("stock of books", "every:300"),
        }
        with mock.patch("shop.partners.stock_of", return_value=7), travel(days=1):
            drain(schedules=True)
        assert Note.objects.get().text == "report of sales"
