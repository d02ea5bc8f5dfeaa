"""The Django backend, on a small site with polls that sends mails."""
