// /// script
// dependencies = ["bullmq", "ioredis"]
//
// [tool.bench]
// note = """
// one worker with 50 jobs at a time, as in its documentation of concurrency; jobs that have ended are removed, as its \
// page for production advises."""
// ///
// BullMQ: asynchronous tasks; a delayed job lies in a sorted set, and the worker waits until the next one is due.

import { Queue, Worker } from 'bullmq'
import Redis from 'ioredis'

import { stamp } from '../oracle.mjs'

const url = process.env.BENCH_REDIS
const remove = { removeOnComplete: true, removeOnFail: 1000 }
let queue

export async function work() {
  const connection = new Redis(url, { maxRetriesPerRequest: null })
  const worker = new Worker('bench', async (job) => stamp(job.data.number), { connection, concurrency: 50 })
  return () => worker.close()
}

export function connect() {
  queue = new Queue('bench', { connection: new Redis(url), defaultJobOptions: remove })
}

const later = (due) => ({ delay: Math.max(0, Math.ceil(due * 1000) - Date.now()) })

export const enqueue = (number) => queue.add('job', { number })

export const enqueueMany = (jobs) => queue.addBulk(jobs.map(([number]) => ({ name: 'job', data: { number } })))

export const schedule = (due, number) => queue.add('job', { number }, later(due))

export const scheduleMany = (due, jobs) =>
  queue.addBulk(jobs.map(([number, padding]) => ({ name: 'job', data: { number, padding }, opts: later(due) })))
