// A client that is not ours: enqueues a job with encrypted arguments, and prints its result, which a worker encrypted.
// It seals and opens as docs/protocol.md says, with what Node has.
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'
import { deflateSync, inflateSync } from 'node:zlib'
import { createClient } from 'redis'

const [path, queue, key, ...accounts] = process.argv.slice(2)
const keys = { old: Buffer.from(key, 'base64') }

function seal(what, name, of, value) {
  const text = Buffer.from(JSON.stringify(value))
  const zip = text.length > 100 ? 'zlib' : ''
  const nonce = randomBytes(12)
  const cipher = createCipheriv('aes-256-gcm', keys.old, nonce)
  cipher.setAAD(Buffer.from([what, name, of, zip].join('\n')))
  const parts = [nonce, cipher.update(zip ? deflateSync(text) : text), cipher.final(), cipher.getAuthTag()]
  return { key: 'old', data: Buffer.concat(parts).toString('base64'), ...(of && { of }), ...(zip && { zip }) }
}

function open(what, name, { key, data, of = '', zip = '' }) {
  const bytes = Buffer.from(data, 'base64')
  const decipher = createDecipheriv('aes-256-gcm', keys[key], bytes.subarray(0, 12))
  decipher.setAAD(Buffer.from([what, name, of, zip].join('\n')))
  decipher.setAuthTag(bytes.subarray(-16))
  const text = Buffer.concat([decipher.update(bytes.subarray(12, -16)), decipher.final()])
  return JSON.parse(zip ? inflateSync(text) : text)
}

const client = createClient({ socket: { path } })
await client.connect()
const root = `evsched:{${queue}}:`
for (const [at, account] of accounts.entries()) {
  const id = `node-${at}`
  const sealed = seal('arguments', 'pay', id, [[account], { cents: 7 }])
  await client.hSet(`${root}job:${id}`, { payload: JSON.stringify({ task: 'pay', reply: true, sealed }) })
  await client.zAdd(`${root}schedule`, { score: 0, value: id })
  const reply = JSON.parse((await client.blPop(`${root}reply:${id}`, 25)).element)
  const result = reply.result['evsched.sealed']
  console.log(JSON.stringify([reply.outcome, result.of === id, open('result', '', result)]))
}
const member = JSON.stringify({ task: 'pay', sealed: seal('arguments', 'pay', '', [[accounts[0]], {}]) })
await client.zAdd(`${root}schedule`, { score: 9e9, value: member })
console.log(member)
client.destroy()
