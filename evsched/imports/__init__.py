"""Reads the schedules of other schedulers as recurrences and jobs of evsched, for `evsched import`.

One module for each: `crontab.py`, `celery_beat.py`, `apscheduler_jobs.py`, `rq_scheduler.py`. They collect in an
`Imported` (`imported.py`) what they have read, and a remark about each part that evsched cannot express. Nothing here
writes: the command does. It imports the other scheduler only through the program that uses it.
"""
