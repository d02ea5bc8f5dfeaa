"""Other designs of a dispatcher on Redis, as small as can be, so that evsched's design is measured against them.

Each file is one design, and says what a client sends to schedule a job, and what moves the job to the list `ready` when
it is due. Start reading with event_script.py, which is evsched's design without anything else. `designs.py` names all,
`measure.py` measures them.
"""
