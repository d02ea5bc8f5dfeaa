// A producer that is not ours: it follows docs/protocol.md, and answers the conformance kit (docs/conformance.md).
// `node producer.mjs inline` writes inline jobs; without the word it writes records.
import { createHash } from 'node:crypto'
import { createInterface } from 'node:readline'
import { createClient } from 'redis'

const inline = process.argv[2] === 'inline'
const { EVSCHED_URL, CONFORMANCE_QUEUE } = process.env
const root = `evsched:{${CONFORMANCE_QUEUE}}:`
const schedule = `${root}schedule`
const socket = EVSCHED_URL.match(/^unix:\/\/(.*)$/)
const client = createClient(socket ? { socket: { path: socket[1] } } : { url: EVSCHED_URL })
await client.connect()

const members = new Map() // of inline jobs: id -> member
let count = 0

async function unique({ due, within, payload }) {
  const { task, args, kwargs } = payload
  const text = JSON.stringify(sorted([task, args, kwargs]))
  const id = `unique-${createHash('sha256').update(text).digest('hex').slice(0, 32)}`
  const [taken, record] = [`${root}unique:${id}`, `${root}job:${id}`]
  await client.watch([taken, record])
  const [written, finished] = await client.hmGet(record, ['payload', 'finished'])
  if ((await client.pTTL(taken)) >= 0 || (written && !finished)) {
    await client.unwatch()
    return { id }
  }
  const call = client.multi().del([record, `${root}reply:${id}`]).hSet(record, 'payload', JSON.stringify(payload))
  if (within) call.set(taken, '', { EX: within })
  await call.zAdd(schedule, { score: due, value: id }).exec()
  return { id }
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, sorted(value[name])]))
}

const verbs = {
  async enqueue({ job: { id, due = 0, priority, group, unique: once, ...payload } }) {
    if (once) return unique({ due, ...once, payload })
    if (inline) {
      const member = JSON.stringify({ ...payload, id, priority, group })
      await client.zAdd(schedule, { score: due, value: member })
      id ??= createHash('sha1').update(member).digest('hex')
      members.set(id, member)
      return { id }
    }
    id ??= `node-${process.pid}-${++count}`
    const fields = { payload: JSON.stringify(payload), ...(priority !== undefined && { priority }), ...(group && { group }) }
    await client
      .multi()
      .hSet(`${root}job:${id}`, Object.entries(fields).flat().map(String))
      .persist(`${root}job:${id}`)
      .del(`${root}reply:${id}`)
      .zAdd(schedule, { score: due, value: id })
      .exec()
    return { id }
  },
  async reschedule({ id, due }) {
    await client.zAdd(schedule, { score: due, value: members.get(id) ?? id }, { condition: 'XX' })
    return {}
  },
  async cancel({ id }) {
    if (await client.zRem(schedule, members.get(id) ?? id)) await client.del(`${root}job:${id}`)
    return {}
  },
  async result({ id }) {
    const { outcome, result } = JSON.parse((await client.blPop(`${root}reply:${id}`, 30)).element)
    return { outcome, result }
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  console.log(JSON.stringify(await verbs[request.verb](request)))
}
client.destroy()
