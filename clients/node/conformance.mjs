// The program of docs/conformance.md.
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Codec, GiveUp, RetryLater, Worker } from './evsched.js'

const { CONFORMANCE_API, CONFORMANCE_TOKEN, CONFORMANCE_QUEUE, CONFORMANCE_LOG, CONFORMANCE_KEYS } = process.env
const note = (what, { id, attempt }) => appendFileSync(CONFORMANCE_LOG, `${what} ${id} ${attempt}\n`)

const tasks = {
  echo: ({ args: [value] }) => value,
  call: ({ args, kwargs }) => ({ args, kwargs }),
  about: ({ id, attempt, due, meta }) => ({ id, attempt, due, meta }),
  text: ({ args: [length] }) => 'x'.repeat(length),
  fail({ args: [times, message], attempt }) {
    if (attempt <= times) throw new Error(message)
    return attempt
  },
  retry_later({ args: [seconds], attempt }) {
    if (attempt === 1) throw new RetryLater(seconds)
    return attempt
  },
  give_up({ args: [reason] }) {
    throw new GiveUp(reason)
  },
  async report({ args: [seconds], progress, signal }) {
    progress(1, 2, 'half')
    await sleep(1000 * seconds, undefined, { signal })
  },
  async work(job) {
    note('begin', job)
    try {
      if (job.attempt === 1) await sleep(1000 * job.args[0], undefined, { signal: job.signal })
    } catch (error) {
      note('stop', job)
      throw error
    }
    note('end', job)
    return job.attempt
  },
  exit(job) {
    note('begin', job)
    process.exit(1)
  },
}

const worker = new Worker({
  url: CONFORMANCE_API,
  token: CONFORMANCE_TOKEN,
  queue: CONFORMANCE_QUEUE,
  concurrency: Number(process.env.CONFORMANCE_SLOTS),
  grace: Number(process.env.CONFORMANCE_GRACE),
  codec: CONFORMANCE_KEYS && new Codec(JSON.parse(CONFORMANCE_KEYS), { write: process.env.CONFORMANCE_KEY }),
  tasks,
})
process.once('SIGTERM', () => worker.stop())
await worker.run()
