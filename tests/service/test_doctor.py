"""The doctor: faults of a server are planted, found with their mend, and gone where it may repair; and a system that
works gives it nothing to say.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from evsched import App, Every, Retry, checkup, events, rights
from evsched.audit import Audit
from evsched.config import Config
from evsched.doctor import Doctor
from evsched.embedded import EmbeddedRedis
from evsched.errors import StoreDown
from evsched.finding import Finding
from evsched.rights import ROLES, Role
from evsched.scripts import folder
from evsched.sender import Commands
from evsched.store import Store
from tests.service.test_cli import Cli
from tests.service.test_rights import USERS, url
from tests.support.system import system
