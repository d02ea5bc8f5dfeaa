"""Three programs of many jobs, on Celery and on evsched: what becomes of them when their worker is killed."""
