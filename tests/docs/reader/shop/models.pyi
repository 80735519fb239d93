from typing import Any, ClassVar, Self

from django.db import models

class Account(models.Model):
    objects: ClassVar[models.Manager[Self]]
    balance: models.IntegerField[Any, Any]

class Mail(models.Model):
    objects: ClassVar[models.Manager[Self]]
    to: models.EmailField[Any, Any]

class Order(models.Model):
    objects: ClassVar[models.Manager[Self]]
    item: models.CharField[Any, Any]
    email: models.EmailField[Any, Any]
    created_at: models.DateTimeField[Any, Any]
