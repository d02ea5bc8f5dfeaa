"""What each user of redis.conf must be allowed to do, as commands that `ACL DRYRUN` can check. Pure."""

from __future__ import annotations

from typing import Final, Literal, get_args

from evsched import keys

Role = Literal["producer", "client", "worker", "dispatcher", "ledger", "observer", "doctor"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

READS: Final = """
EXISTS job:x · GET arrival · HEXISTS job:x field · HGET job:x field · HGETALL job:x · HKEYS job:x · HLEN limits
HMGET job:x field · HSTRLEN job:x payload · LINDEX ready 0 · LLEN ready
LPOS ready x · LRANGE ready 0 1 · MEMORY USAGE job:x · PTTL job:x · SISMEMBER program:x y · TYPE job:x
ZCARD schedule · ZCOUNT schedule 0 1 · ZMSCORE schedule x
ZRANGE schedule 0 1 · ZRANK backlog x · ZSCAN schedule 0 · ZSCORE schedule x
"""
"""The commands in the scripts that only read. A test compares these with lua/."""

WRITES: Final = """
DEL job:x · HDEL job:x field · HINCRBY in_flight field 1 · HRANDFIELD fair 1 · HSET job:x field value
HSETNX job:x field value · LPUSH ready x · LREM ready 1 x · LTRIM ready 0 1 · PERSIST job:x
PEXPIRE job:x 1 · RENAME job:x job:y · RPUSH ready x · SADD declared:x y · SET arrival 1 · SMEMBERS declared:x
SPUBLISH {root}idle:x job · SRANDMEMBER declared:x 1 · SREM declared:x y · XACK ends g 1-1 · XADD ends * field value
XDEL ends 1-1 · ZADD schedule 0 x · ZPOPMIN idle 1 · ZREM schedule x · ZREMRANGEBYRANK backlog 0 1
ZREMRANGEBYSCORE parents 0 1 · ZUNIONSTORE throttled 1 throttled
"""
"""The commands that the other scripts need in addition."""

FORWARDS: Final = "XADD stream * id x · LPUSH list x · RPUSH list x · PUBLISH channel x"
"""The commands with which `forward` sends messages. Which of them a worker needs, and for which keys and channels,
depends on what its jobs forward."""

_PLACES: Final = ("job:", "reply:", "processing:", "declared:", "program:")
_NAMES: Final = (
    "arrival",
    "limits",
    "ready",
    "schedule",
    "backlog",
    "in_flight",
    "fair",
    "throttled",
    "dead",
    "canary",
    "idle",
    "starting",
    "newly_paused",
    "parents",
    "ends",
)

_OWN: Final[dict[Role, str]] = {
    "producer": """
        ZADD schedule 0 x · ZREM schedule x · HSET job:x field value · HGETALL job:x · BLPOP reply:x 1
        DEL reply:x · UNLINK reply:x · MULTI · EXEC · DISCARD
    """,
    "client": """
        BLMOVE reply:x reply:x LEFT LEFT 1 · LINDEX reply:x 0 · SUBSCRIBE {root}progress:x
        ZRANGE evsched:{}:shards 0 -1 WITHSCORES
    """,
    "worker": """
        BLMOVE ready processing:x LEFT RIGHT 1 · SUBSCRIBE {root}control:x · SUBSCRIBE {root}status
        SSUBSCRIBE {root}idle:x · INFO server · CLIENT ID · CLIENT UNBLOCK 1 · SADD evsched:{}:queues x
        BLMOVE ready ready LEFT LEFT 1 · SET starting 1 NX PX 1 · ZREM parents x
    """,
    "dispatcher": """
        SCAN 0 · INFO server · CONFIG GET notify-keyspace-events · SADD evsched:{}:queues x · SMEMBERS evsched:{}:queues
        SPOP newly_paused 1
    """,
    "ledger": """
        INFO server · SET evsched:{}:epoch x NX GET · SET evsched:{}:ledger x NX GET
        XGROUP CREATE ends g 0 MKSTREAM · XGROUP DELCONSUMER ends g x
        XREADGROUP GROUP g x STREAMS ends > · XAUTOCLAIM ends g x 1 0 · XINFO CONSUMERS ends g
    """,
    "observer": """
        SCAN 0 · INFO server · SMEMBERS evsched:{}:queues · PUBSUB CHANNELS evsched:canary:*
        PUBLISH {root}status x · SUBSCRIBE {root}status:x · ZRANGE evsched:{}:shards 0 -1 WITHSCORES
    """,
    "doctor": """
        SCAN 0 · INFO server · DBSIZE · CONFIG GET notify-keyspace-events · ZADD canary 0 x
        DEL canary · SUBSCRIBE {canary} · PUBSUB CHANNELS evsched:canary:*
        ZRANGE evsched:{}:shards 0 -1 WITHSCORES
    """,
}


def _read(text: str, root: str, canary: str) -> list[tuple[str, ...]]:
    """Read lines of commands, and put keys in the place of the short names."""
    found = list[tuple[str, ...]]()
    for line in text.replace("·", "\n").splitlines():
        words = [root + word if word in _NAMES or word.startswith(_PLACES) else word for word in line.split()]
        if words:
            found.append(tuple(word.replace("{root}", root).replace("{canary}", canary) for word in words))
    return found


def needs(role: Role, queue: str, db: int, *, all_queues: bool, cluster: bool = False) -> list[tuple[str, ...]]:
    """Return the commands that a role must be allowed to run, with the keys of `queue` as an example.

    `all_queues`: the role serves all queues instead of named ones, so it subscribes to patterns. `cluster`: it has to
    find the nodes.
    """
    root = keys.root(queue)
    text = _OWN[role]
    found = _read(text, root, keys.events(db, keys.canary(queue)))
    if cluster:
        found.append(("CLUSTER", "SLOTS"))
    if role != "producer":
        # A script may run only commands that its caller may run.
        found += [("EVALSHA", "0", "1", root), ("EVAL", "return 1", "1", root), ("TIME",)]
        found += _read(READS, root, "")
    if role in ("client", "worker", "dispatcher", "ledger"):
        found += [*_read(WRITES, root, ""), ("PUBLISH", keys.gate(queue), "0")]
    if role == "dispatcher":
        names = [key("*" if all_queues else queue) for key in (keys.schedule, keys.recurrences, keys.canary)]
        channels = [keys.events(db, name) for name in names] + [keys.gate("*" if all_queues else queue)]
        found += [("PSUBSCRIBE" if all_queues else "SUBSCRIBE", channel) for channel in channels]
        found.append(("SUBSCRIBE", keys.canary_message("x")))
    return found
