import asyncio
import sys
import time

import coredis


async def main(port: str, queue: str) -> None:
    client = coredis.Redis(
        host="127.0.0.1", port=int(port), username="producer", password="change-me", decode_responses=True
    )
    async with client:
        await run(client, f"evsched:{{{queue}}}:", time.time() + 3600)


async def run(client: coredis.Redis[str], root: str, later: float) -> None:
    schedule = f"{root}schedule"
    print(await client.zadd(schedule, {'{"task":"add","args":[1,2],"id":"inline","reply":true}': 0}))
    async with client.pipeline(transaction=True) as pipe:
        both = [
            pipe.hset(f"{root}job:record", {"payload": '{"task":"add","args":[3,4],"reply":true}', "priority": 7}),
            pipe.zadd(schedule, {"record": later}),
        ]
    print(*[await reply for reply in both])
    await client.zadd(schedule, {"record": 0}, condition=coredis.PureToken.XX)
    await client.hset(f"{root}job:gone", {"payload": '{"task":"add","args":[5,6]}'})
    await client.zadd(schedule, {"gone": later})
    print(await client.zrem(schedule, ["gone"]))
    for job in ("inline", "record"):
        print((await client.blpop([f"{root}reply:{job}"], timeout=25))[1])
    print((await client.hgetall(f"{root}job:record"))["outcome"])
    print(await client.delete([f"{root}reply:record"]))


asyncio.run(main(*sys.argv[1:]))
