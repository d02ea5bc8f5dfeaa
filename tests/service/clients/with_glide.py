import asyncio
import sys
import time

from glide import (
    Batch,
    ConditionalChange,
    GlideClient,
    GlideClientConfiguration,
    NodeAddress,
    ServerCredentials,
)


async def main(port: str, queue: str) -> None:
    client = await GlideClient.create(
        GlideClientConfiguration(
            [NodeAddress("127.0.0.1", int(port))],
            credentials=ServerCredentials(password="change-me", username="producer"),
            request_timeout=5000,
        )
    )
    root, later = f"evsched:{{{queue}}}:", time.time() + 3600
    schedule = f"{root}schedule"
    print(await client.zadd(schedule, {'{"task":"add","args":[1,2],"id":"inline","reply":true}': 0}))
    both = Batch(is_atomic=True)
    both.hset(f"{root}job:record", {"payload": '{"task":"add","args":[3,4],"reply":true}', "priority": "7"})
    both.zadd(schedule, {"record": later})
    print(*await client.exec(both, raise_on_error=True))
    await client.zadd(schedule, {"record": 0}, existing_options=ConditionalChange.ONLY_IF_EXISTS)
    await client.hset(f"{root}job:gone", {"payload": '{"task":"add","args":[5,6]}'})
    await client.zadd(schedule, {"gone": later})
    print(await client.zrem(schedule, ["gone"]))
    for job in ("inline", "record"):
        print((await client.blpop([f"{root}reply:{job}"], 25))[1].decode())
    print((await client.hgetall(f"{root}job:record"))[b"outcome"].decode())
    print(await client.delete([f"{root}reply:record"]))
    await client.close()


asyncio.run(main(*sys.argv[1:]))
