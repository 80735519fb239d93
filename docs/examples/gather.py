"""Groups: calls that are sent close together are passed to one run, as a list."""

import project

project.setup()

from horsies_django import Gather, task
from horsies_django.testing import drain


@task(gather=Gather("customer-{customer}", max_size=3, max_delay=60))
def tell_customer(items):
    print(f"one mail to {items[0]['customer']}:", [item["text"] for item in items])
    return len(items)


for text in ["Anna has answered.", "Ben has answered.", "Cem has answered."]:
    handle = tell_customer.send(customer=7, text=text)
tell_customer.send(customer=8, text="Dora has answered.")

print(drain())  # the group of customer 7 is full
print(handle.value(), "calls in one task")
print(drain(scheduled=True))  # the group of customer 8 would wait up to 60 s for more calls

# Output:
# one mail to 7: ['Anna has answered.', 'Ben has answered.', 'Cem has answered.']
# 1 COMPLETED
# 3 calls in one task
# one mail to 8: ['Dora has answered.']
# 1 COMPLETED
