// /// script
// dependencies = ["bee-queue"]
//
// [tool.bench]
// note = """
// 256 jobs at a time, as evsched; jobs that have ended are removed and no events are sent, as its documentation advises \
// where nobody reads them."""
// ///
// Bee-Queue: asynchronous tasks; a timer of the worker moves delayed jobs, at most once a second.

import Queue from 'bee-queue'

import { stamp } from '../oracle.mjs'

const quiet = { redis: process.env.BENCH_REDIS, getEvents: false, sendEvents: false, storeJobs: false }
let queue

export async function work() {
  const worker = new Queue('bench', { ...quiet, activateDelayedJobs: true, removeOnSuccess: true })
  worker.process(256, async (job) => stamp(job.data.number))
  return () => worker.close(1000)
}

export async function connect() {
  queue = await new Queue('bench', { ...quiet, isWorker: false }).ready()
}

const later = (due, data) => queue.createJob(data).delayUntil(Math.ceil(due * 1000))

export const enqueue = (number) => queue.createJob({ number }).save()

export const enqueueMany = (jobs) => queue.saveAll(jobs.map(([number]) => queue.createJob({ number })))

export const schedule = (due, number) => later(due, { number }).save()

export const scheduleMany = (due, jobs) => queue.saveAll(jobs.map(([number, padding]) => later(due, { number, padding })))
