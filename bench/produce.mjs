// Enqueue jobs with one scheduler of Node: `node bench/produce.mjs NAME`. It answers the requests of bench/produce.py.
//
// The scheduler's file exports what that of a scheduler of Python has, with these names:
//
//     work()                          run its worker in this process; resolves to a function that closes it
//     enqueue(number)                 enqueue one job
//     enqueueMany(jobs)               enqueue many jobs by the call that the scheduler has for this
//     schedule(due, ...job)           schedule one job for a time in Unix seconds
//     scheduleMany(due, jobs)         schedule many for the same time by one call
//     connect()                       called before the others
//
// A job is [number], or [number, text that makes the payload longer]. The API of all of them is asynchronous.

import { createInterface } from 'node:readline'

const TASKS = 100 // as in bench/produce.py
const AT_ONCE = 1000 // likewise

const name = process.argv[2]
const scheduler = await import(`./schedulers/${name}.mjs`)

function numbers(first, count) {
  return Array.from({ length: count }, (_, n) => [first + n])
}

async function oneByOne(call, jobs) {
  const left = jobs.values()
  const work = async () => {
    for (const job of left) await call(...job)
  }
  await Promise.all(Array.from({ length: TASKS }, work))
}

async function inBulk(call, jobs) {
  for (let at = 0; at < jobs.length; at += AT_ONCE) await call(jobs.slice(at, at + AT_ONCE))
}

async function timed(made) {
  const began = performance.now()
  await made()
  return (performance.now() - began) / 1000
}

const answers = {
  commands: () => [['node', 'bench/work.mjs', name]],
  fill: (first, count) => answers.many(first, count),
  many: (first, count) => {
    const jobs = numbers(first, count)
    return timed(() => inBulk(scheduler.enqueueMany, jobs))
  },
  single: (first, count) => timed(() => oneByOne(scheduler.enqueue, numbers(first, count))),
  schedule: async (due, first, count, ...padding) => {
    const jobs = numbers(first, count).map((job) => [...job, ...padding])
    await inBulk((some) => scheduler.scheduleMany(due, some), jobs)
    return true
  },
  spread: async (dues, first) => {
    await oneByOne(scheduler.schedule, dues.map((due, n) => [due, first + n]))
    return true
  },
}

await scheduler.connect?.()
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...words] = JSON.parse(line)
  process.stdout.write(`${JSON.stringify(await answers[verb](...words))}\n`)
}
process.exit(0)
