import { createClient } from 'redis'

const [port, queue] = process.argv.slice(2)
const client = createClient({ url: `redis://producer:change-me@127.0.0.1:${port}` })
await client.connect()
const root = `evsched:{${queue}}:`
const later = Date.now() / 1000 + 3600

console.log(await client.zAdd(`${root}schedule`, { score: 0, value: '{"task":"add","args":[1,2],"id":"inline","reply":true}' }))
const both = await client
  .multi()
  .hSet(`${root}job:record`, { payload: '{"task":"add","args":[3,4],"reply":true}', priority: '7' })
  .zAdd(`${root}schedule`, { score: later, value: 'record' })
  .exec()
console.log(both.join(' '))
await client.zAdd(`${root}schedule`, { score: 0, value: 'record' }, { condition: 'XX' })
await client.hSet(`${root}job:gone`, { payload: '{"task":"add","args":[5,6]}' })
await client.zAdd(`${root}schedule`, { score: later, value: 'gone' })
console.log(await client.zRem(`${root}schedule`, 'gone'))
console.log((await client.blPop(`${root}reply:inline`, 25)).element)
console.log((await client.blPop(`${root}reply:record`, 25)).element)
console.log((await client.hGetAll(`${root}job:record`)).outcome)
console.log(await client.del(`${root}reply:record`))
client.destroy()
