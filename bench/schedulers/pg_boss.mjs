// /// script
// dependencies = ["pg-boss"]
//
// [tool.bench]
// server = "PostgreSQL"
// note = """
// the last version that runs on Node 20; it fetches one batch in each interval: here of up to 1,000 jobs each half \
// second, the least interval that it accepts (by default one job each 2 s). PostgreSQL has its defaults, with \
// synchronous_commit=off."""
// ///
// pg-boss: asynchronous tasks in a table of PostgreSQL, which the worker looks at each half second.

import PgBoss from 'pg-boss'

import { stamp } from '../oracle.mjs'

const boss = new PgBoss(process.env.BENCH_POSTGRESQL)
boss.on('error', (error) => console.error(error))

export async function work() {
  await boss.start()
  await boss.createQueue('bench')
  await boss.work('bench', { batchSize: 1000, pollingIntervalSeconds: 0.5 }, async (jobs) => {
    for (const job of jobs) stamp(job.data.number)
  })
  return () => boss.stop({ graceful: false })
}

export async function connect() {
  await boss.start()
  await boss.createQueue('bench')
}

const later = (due) => new Date(Math.ceil(due * 1000))

export const enqueue = (number) => boss.send('bench', { number })

export const enqueueMany = (jobs) => boss.insert(jobs.map(([number]) => ({ name: 'bench', data: { number } })))

export const schedule = (due, number) => boss.sendAfter('bench', { number }, {}, later(due))

export const scheduleMany = (due, jobs) =>
  boss.insert(jobs.map(([number, padding]) => ({ name: 'bench', data: { number, padding }, startAfter: later(due) })))
