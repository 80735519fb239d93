import sys
from smtplib import SMTPException

from django.dispatch import receiver

from horsies_django import Cron, Every, Retry, RetryPolicy, schedule, task
from horsies_django.signals import task_finished
from shop import partners
from shop.models import Note, Order


@task(queue_name="emails", takes_context=True, retry_policy=RetryPolicy.fixed([60] * 3, auto_retry_for=["TASK_RETRY"]))
def mail_receipt(context, order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    try:
        partners.deliver(order.email)
    except SMTPException as error:
        raise Retry(after=60 * 2 ** (context.attempt - 1)) from error
    return order.email


@task(queue_name="emails")
def mail_reminder(order_id: int) -> None:
    partners.deliver(Order.objects.get(pk=order_id).email)


@task(
    retry_policy=RetryPolicy.exponential(
        2, max_retries=5, max_delay_seconds=600, auto_retry_for=[ConnectionError], jitter=False
    )
)
def sync_stock(item: str) -> int:
    return partners.stock_of(item)


@task(rate_limit="10/m, 1")
def ask_price(item: str) -> int:
    return partners.price_of(item)


@task
def reserve(order_id: int) -> int:
    Order.objects.filter(pk=order_id).update(state="reserved")
    return 25


@task
def charge(price: int, order_id: int) -> str:
    Order.objects.filter(pk=order_id).update(state=f"paid {price}")
    return f"order {order_id}: {price}"


@task
def resize(image: str, width: int) -> str:
    return f"{image}-{width}.png"


@task
def publish_gallery(files: list[str], order_id: int) -> int:
    Note.objects.create(text=f"gallery of {order_id}: {', '.join(files)}")
    return len(files)


@task(queue_name="reports")
def nightly_report(kind: str) -> None:
    Note.objects.create(text=f"report of {kind}")


@task(timeout=60, retention=0)
def import_orders(rows: list[str]) -> None:
    for email in rows:
        if "@" not in email:
            raise ValueError(f"not an address: {email}")
        Order.objects.create(email=email)


schedule("nightly report", nightly_report, Cron("30 2 * * *"), args=["sales"], good_for=3600)
schedule("stock of books", sync_stock, Every(seconds=300), kwargs={"item": "book"})


@receiver(task_finished)
def count_failure(sender, task_result, **kwargs):
    if task_result.status == "FAILED":
        Note.objects.create(text=f"failed: {task_result.task.task_name}: {type(sys.exception()).__name__}")


@receiver(task_finished)
def report_failure(sender, task_result, **kwargs):
    name = task_result.task.task_name
    if task_result.status == "FAILED" and name == "shop.tasks.import_orders":
        Note.objects.create(text=f"{name}{tuple(task_result.args)} needs you: {sys.exception()}")
