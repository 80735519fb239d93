from smtplib import SMTPException

from celery import Task, shared_task
from celery.signals import task_failure

from shop import partners
from shop.models import Note, Order


class ReportedTask(Task):
    def on_failure(self, exc, task_id, args, kwargs, einfo):
        Note.objects.create(text=f"{self.name}{tuple(args)} needs you: {exc}")


@shared_task(bind=True, max_retries=3)
def mail_receipt(self, order_id):
    order = Order.objects.get(pk=order_id)
    try:
        partners.deliver(order.email)
    except SMTPException as error:
        raise self.retry(exc=error, countdown=60 * 2**self.request.retries)  # noqa: B904
    return order.email


@shared_task
def mail_reminder(order_id):
    partners.deliver(Order.objects.get(pk=order_id).email)


@shared_task(
    autoretry_for=(ConnectionError,), retry_backoff=2, retry_backoff_max=600, retry_jitter=False, max_retries=5
)
def sync_stock(item):
    return partners.stock_of(item)


@shared_task(rate_limit="10/m")
def ask_price(item):
    return partners.price_of(item)


@shared_task
def reserve(order_id):
    Order.objects.filter(pk=order_id).update(state="reserved")
    return 25


@shared_task
def charge(price, order_id):
    Order.objects.filter(pk=order_id).update(state=f"paid {price}")
    return f"order {order_id}: {price}"


@shared_task
def resize(image, width):
    return f"{image}-{width}.png"


@shared_task
def publish_gallery(files, order_id):
    Note.objects.create(text=f"gallery of {order_id}: {', '.join(files)}")
    return len(files)


@shared_task
def nightly_report(kind):
    Note.objects.create(text=f"report of {kind}")


@shared_task(base=ReportedTask, soft_time_limit=60, ignore_result=True)
def import_orders(rows):
    for email in rows:
        if "@" not in email:
            raise ValueError(f"not an address: {email}")
        Order.objects.create(email=email)


@task_failure.connect
def count_failure(sender, task_id, exception, **kwargs):
    Note.objects.create(text=f"failed: {sender.name}: {type(exception).__name__}")
