import Redis from 'ioredis'

const [port, queue] = process.argv.slice(2)
const client = new Redis({ host: '127.0.0.1', port: Number(port), username: 'producer', password: 'change-me' })
const root = `evsched:{${queue}}:`
const later = Date.now() / 1000 + 3600

console.log(await client.zadd(`${root}schedule`, 0, '{"task":"add","args":[1,2],"id":"inline","reply":true}'))
const both = await client
  .multi()
  .hset(`${root}job:record`, { payload: '{"task":"add","args":[3,4],"reply":true}', priority: 7 })
  .zadd(`${root}schedule`, later, 'record')
  .exec()
console.log(both.map(([error, reply]) => error ?? reply).join(' '))
await client.zadd(`${root}schedule`, 'XX', 0, 'record')
await client.hset(`${root}job:gone`, { payload: '{"task":"add","args":[5,6]}' })
await client.zadd(`${root}schedule`, later, 'gone')
console.log(await client.zrem(`${root}schedule`, 'gone'))
console.log((await client.blpop(`${root}reply:inline`, 25))[1])
console.log((await client.blpop(`${root}reply:record`, 25))[1])
console.log((await client.hgetall(`${root}job:record`)).outcome)
console.log(await client.del(`${root}reply:record`))
client.disconnect()
