from __future__ import annotations

from django.db import models


class Poll(models.Model):
    question: models.CharField[str, str] = models.CharField(max_length=200)

    class Meta:
        app_label = "polls"
