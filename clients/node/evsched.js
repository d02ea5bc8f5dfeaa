// Run and enqueue jobs of evsched over HTTP. docs/workers.md describes the requests; each comment here says why.
import { randomBytes, randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { CannotOpen } from './codec.js'

export { Codec } from './codec.js'

/** The API has refused a request: `status`, `code` for programs, and the message for people. */
export class Problem extends Error {
  constructor(status, { code = 'unknown', detail = `the server answers with ${status}` } = {}) {
    super(detail)
    this.name = 'Problem'
    this.status = status
    this.code = code
  }
}

/** Thrown by a handler: the job is not to run again. */
export class GiveUp extends Error {
  name = 'GiveUp'
}

/** Thrown by a handler: the job is to run again in so many seconds, which costs an attempt. */
export class RetryLater extends Error {
  name = 'RetryLater'
  constructor(seconds, message = `again in ${seconds} s`) {
    super(message)
    check('RetryLater', { seconds }, Number.isFinite, 'a number of seconds')
    this.seconds = seconds
  }
}

/** Why a run is to stop: its signal's `reason`. `why`: 'cancelled', 'lost', 'timeout' or 'stopping'. */
export class Stopped extends Error {
  name = 'Stopped'
  constructor(why) {
    super(why === 'timeout' ? 'timeout: it ran longer than its limit' : `the run is to stop: ${why}`)
    this.why = why
  }
}

const FIRST_PAUSE = 100
const LONGEST_PAUSE = 5000
const REPLY_TIMEOUT = 15_000 // the server tries for 5 s while Redis is down
const STOP_PATIENCE = 10_000 // for a handler to obey its signal
const LONGEST = 2 ** 31 - 1 // of a timer: 24 days
const REPORT_EVERY = 500 // a loop that reports each row must not send each
const REASON_MOST = 2000 // characters: the server keeps less, and refuses a request that is too long
const TRACEBACK_MOST = 20_000

class Http {
  #base
  #headers

  constructor(of, { url, token, queue = 'default' }) {
    const isUrl = (text) => /^https?:\/\/./.test(text) && URL.canParse(text)
    check(of, { url }, isUrl, 'where evsched api is: http://HOST:PORT')
    this.#base = `${url.replace(/\/+$/, '')}/v1/queues/${encodeURIComponent(queue)}`
    this.#headers = { 'Content-Type': 'application/json', Accept: 'application/json' }
    if (token) this.#headers.Authorization = `Bearer ${token}`
  }

  /** Send a request until it is answered, at most for `patience` ms; return the JSON of the reply. */
  async call(method, path, body, { signal, patience = Infinity, timeout = REPLY_TIMEOUT, headers = {} } = {}) {
    const until = performance.now() + patience
    const text = body && json(body)
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      let failure
      let rest = pause * (0.5 + Math.random())
      try {
        const request = { method, headers: { ...this.#headers, ...headers }, body: text }
        const [response, reply] = await within(timeout, signal, async (limit) => {
          const answer = await fetch(this.#base + path, { ...request, signal: limit })
          return [answer, await answer.text()]
        })
        if (response.ok) return reply && JSON.parse(reply)
        failure = new Problem(response.status, parsed(reply))
        const isPassing = response.status >= 500 || response.status === 429 || response.status === 408
        if (!isPassing) throw failure
        rest = Math.max(rest, 1000 * (Number(response.headers.get('Retry-After')) || 0))
      } catch (error) {
        signal?.throwIfAborted()
        if (error === failure) throw error
        failure = error // no reply: the request may have been done, and may be repeated all the same
      }
      if (performance.now() + rest > until) throw failure
      await sleep(rest, undefined, { signal })
    }
  }
}

/** Call a function with a signal that is aborted after so many milliseconds, and with the other one. */
async function within(milliseconds, signal, send) {
  signal?.throwIfAborted()
  const limit = new AbortController()
  const abort = () => limit.abort(signal.reason)
  const timer = setTimeout(() => limit.abort(new Error(`no reply within ${milliseconds / 1000} s`)), milliseconds)
  signal?.addEventListener('abort', abort) // not AbortSignal.any, which keeps each request alive as long as the signal
  try {
    return await send(limit.signal)
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', abort)
  }
}

/** Return a value as JSON, unless that would change it in silence. */
function json(value) {
  return JSON.stringify(value, (key, part) => {
    if (typeof part === 'number' && !Number.isFinite(part)) throw new TypeError(`${part} is not a number of JSON`)
    return part
  })
}

/** Throw TypeError if an option is not what it should be. */
function check(of, option, isRight, wanted) {
  const [[name, value]] = Object.entries(option)
  if (!isRight(value)) throw new TypeError(`${of}: ${name} is ${String(value).slice(0, 100)}: give ${wanted}`)
}

function checkNames(of, rest) {
  const [name] = Object.keys(rest)
  if (name !== undefined) throw new TypeError(`${of}: there is no option ${name}`)
}

function between(least, most) {
  return (value) => typeof value === 'number' && value >= least && value <= most
}

function parsed(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined // a proxy has answered
  }
}

/** A name that no other process has: host and process for people, and random digits, since hosts share names. */
function newName() {
  const host = hostname().replace(/[^\w.-]/g, '-').slice(0, 60)
  return `${host}-${process.pid}-${randomBytes(4).toString('hex')}`
}

/** Runs the jobs of one queue. */
export class Worker {
  #http
  #path
  #tasks
  #names
  #slots
  #wait
  #grace
  #codec
  #onError
  #held = new Map() // id -> the run
  #changed = new Signal()
  #reported = new Signal()
  #stopping = new AbortController()
  #ended = new AbortController()
  #heartbeat = 1000
  #lease = 10_000
  #done

  constructor(options) {
    const { url, token, queue, tasks, concurrency = 1, name, wait = 30, grace = 30, codec, onError, ...rest } = options
    checkNames('Worker', rest)
    check('Worker', { concurrency }, (count) => Number.isInteger(count) && between(1, 100)(count), '1 to 100')
    check('Worker', { wait }, between(0, 60), '0 to 60 s')
    check('Worker', { grace }, between(0, LONGEST / 1000), 'a number of seconds')
    const hasHandlers = (map) => Object(map) === map && Object.values(map).every((one) => typeof one === 'function')
    check('Worker', { tasks }, hasHandlers, 'an object with a handler for each task')
    this.name = name ?? newName()
    this.#http = new Http('Worker', { url, token, queue })
    this.#path = `/workers/${encodeURIComponent(this.name)}`
    this.#tasks = new Map(Object.entries(tasks))
    this.#names = [...this.#tasks.keys()]
    this.#slots = concurrency
    this.#wait = wait
    this.#grace = 1000 * grace
    this.#codec = codec
    this.#onError = onError ?? console.error
  }

  /** Run jobs until `stop` is called and the last one has ended. Rejects if the API refuses the worker. */
  run() {
    this.#done ??= this.#run()
    return this.#done
  }

  /** Fetch no more, let the runs end, for `grace` seconds at most, and hand the others back. */
  stop() {
    this.#stopping.abort()
    this.#changed.ring()
    return this.#done ?? Promise.resolve()
  }

  async #run() {
    const beating = this.#beat()
    try {
      await this.#fetchAll()
    } finally {
      await Promise.race([this.#idle(), sleep(this.#grace, undefined, { ref: false })])
      for (const run of this.#held.values()) run.stop('stopping')
      this.#ended.abort()
      this.#reported.ring()
      await beating
      // Hands back the jobs of those runs, and of a fetch whose reply did not come any more.
      await this.#http.call('DELETE', this.#path, undefined, { patience: 5000, timeout: 5000 }).catch(this.#onError)
    }
  }

  async #fetchAll() {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      if (this.#held.size >= this.#slots) {
        await this.#changed.wait()
        continue
      }
      const body = {
        tasks: this.#names,
        slots: this.#slots,
        holding: [...this.#held.keys()],
        wait: this.#wait,
        sealed: this.#codec !== undefined,
      }
      const timeout = 1000 * this.#wait + REPLY_TIMEOUT
      let reply
      try {
        reply = await this.#http.call('POST', `${this.#path}/fetch`, body, { signal, timeout })
      } catch (error) {
        if (signal.aborted) break
        throw error
      }
      this.#follow(reply)
      for (const job of reply.jobs) this.#begin(job)
    }
  }

  async #idle() {
    while (this.#held.size) await this.#changed.wait()
  }

  #follow({ heartbeat, lease }) {
    this.#heartbeat = 1000 * heartbeat
    this.#lease = 1000 * lease
  }

  #begin(job) {
    const before = this.#held.get(job.id)
    if (before?.job.run === job.run) return // the reply to a fetch that was repeated
    before?.stop('lost') // the lease was lost, and this worker got the job again
    const run = new Run(job, () => this.#reported.ring())
    this.#held.set(job.id, run)
    this.#reported.ring()
    this.#complete(run)
      .catch(this.#onError)
      .finally(() => {
        if (this.#held.get(job.id) === run) this.#held.delete(job.id)
        this.#changed.ring()
      })
  }

  async #complete(run) {
    const end = await run.end(this.#tasks.get(run.job.task), this.#codec)
    if (!end || run.why === 'lost' || run.why === 'stopping') return
    const [how, body] = end
    const path = `${this.#path}/jobs/${encodeURIComponent(run.job.id)}`
    const send = (verb, more) =>
      this.#http.call('POST', `${path}/${verb}`, { run: run.job.run, ...more }, { signal: this.#ended.signal })
    try {
      await send(how, body)
    } catch (error) {
      if (this.#ended.signal.aborted || error.status === 409) return // handed back, or lost: nothing more to do
      if (!(error instanceof Problem)) throw error
      await send('give-up', { reason: error.message })
    }
  }

  /** Renew the lease while jobs run, and hear which of them are to stop. */
  async #beat() {
    let last = 0
    while (!this.#ended.signal.aborted) {
      if (!this.#held.size) {
        await this.#reported.wait()
        continue
      }
      const reports = [...this.#held.values()].some((run) => run.progress)
      const rest = last + (reports ? REPORT_EVERY : this.#heartbeat) - performance.now()
      if (rest > 0) {
        await this.#reported.wait(rest)
        continue
      }
      last = performance.now()
      await this.#keep([...this.#held.values()]).catch((error) => {
        if (!this.#ended.signal.aborted) this.#onError(error)
      })
    }
  }

  async #keep(held) {
    const runs = held.map((run) => run.reported())
    const body = { tasks: this.#names, runs }
    const options = { signal: this.#ended.signal, timeout: 5000, patience: this.#lease }
    const kept = await this.#http.call('POST', `${this.#path}/heartbeat`, body, options)
    this.#follow(kept)
    for (const run of held) {
      if (kept.lost.includes(run.job.id)) run.stop('lost')
      else if (kept.stop.includes(run.job.id)) run.stop('cancelled')
    }
  }
}

/** One run of a job. */
class Run {
  #controller = new AbortController()
  #onReport

  constructor(job, onReport) {
    this.job = job
    this.progress = undefined // until it is sent
    this.why = undefined // why it is to stop
    this.#onReport = onReport
  }

  stop(why) {
    if (this.why !== 'lost') this.why = why
    this.#controller.abort(new Stopped(why))
  }

  /** The run for a heartbeat, with the last progress that was not sent. */
  reported() {
    const { progress } = this
    this.progress = undefined
    return { id: this.job.id, run: this.job.run, ...(progress && { progress }) }
  }

  /** Run the handler; return the request that ends the run, and its body. */
  async end(handler, codec) {
    const { run: _, sealed, timeout, ...job } = this.job
    const { signal } = this.#controller
    const progress = (done, total = null, note = '') => {
      if (![done, total ?? 0].every(Number.isFinite)) throw new TypeError('progress: give finite numbers')
      this.progress = { done, total, note: String(note).toWellFormed() }
      this.#onReport()
    }
    const onTimeout = () => this.stop('timeout')
    const timer = timeout === null ? undefined : setTimeout(onTimeout, Math.min(1000 * timeout, LONGEST))
    try {
      const call = codec?.openCall(this.job) // before the handler begins
      const working = Promise.resolve().then(() => handler({ ...job, ...call, timeout, signal, progress }))
      working.catch(() => {}) // it may end when nobody waits for it any more
      const result = await Promise.race([working, afterAbort(signal)])
      if (this.why) throw signal.reason
      const kept = checked(result)
      return ['complete', { result: codec ? codec.sealResult(job.id, kept) : kept }]
    } catch (error) {
      return failure(this.why ? signal.reason : error)
    } finally {
      clearTimeout(timer)
    }
  }
}

/** Reject some time after a signal, for handlers that do not obey it. */
function afterAbort(signal) {
  return new Promise((_, reject) => {
    signal.addEventListener('abort', () => setTimeout(reject, STOP_PATIENCE, signal.reason).unref(), { once: true })
  })
}

function checked(result) {
  try {
    json(result)
  } catch (error) {
    throw new GiveUp(`the result is not JSON: ${error.message}`)
  }
  return result ?? null
}

function failure(error) {
  const isError = error instanceof Error
  const message = (isError ? error.message : String(error)).slice(0, REASON_MOST).toWellFormed()
  const traceback = String((isError && error.stack) || '').slice(-TRACEBACK_MOST).toWellFormed()
  const raised = isError ? { error: error.name.toWellFormed(), traceback } : {}
  if (error instanceof GiveUp || error instanceof CannotOpen) return ['give-up', { reason: message }]
  if (error instanceof RetryLater) return ['retry', { reason: message, delay: error.seconds }]
  if (error instanceof Stopped) return ['retry', { reason: message }]
  return ['retry', { reason: isError ? `${error.name}: ${message}`.toWellFormed() : message, ...raised }]
}

/** Wakes the one that waits for it, or the next to wait. */
class Signal {
  #rung = false
  #wake = () => {}

  ring() {
    this.#rung = true
    this.#wake()
  }

  /** Wait until it rings, or for so many milliseconds. */
  async wait(milliseconds) {
    if (!this.#rung) {
      let timer
      await new Promise((resolve) => {
        this.#wake = resolve
        if (milliseconds !== undefined) timer = setTimeout(resolve, milliseconds)
      })
      clearTimeout(timer)
    }
    this.#rung = false
  }
}

function moment(due) {
  return due instanceof Date ? due.toISOString() : due
}

/** Enqueues jobs, and looks them up. */
export class Client {
  #http
  #patience

  constructor({ url, token, queue, patience = 30, ...rest }) {
    checkNames('Client', rest)
    check('Client', { patience }, (seconds) => seconds >= 0, 'a number of seconds')
    this.#http = new Http('Client', { url, token, queue })
    this.#patience = 1000 * patience
  }

  /** Enqueue a job; return its `id`, `queue` and `due`. A request that is repeated makes no second job. */
  enqueue(task, { args = [], due, ...options } = {}) {
    const headers = { 'Idempotency-Key': randomUUID() }
    return this.#call('POST', '/jobs', { task, args, due: moment(due), ...options }, headers)
  }

  /** Return where a job is, and its record. */
  status(id) {
    return this.#call('GET', `/jobs/${encodeURIComponent(id)}`)
  }

  /** Wait until a job has ended, for so many seconds at most; return its `outcome` (null: not yet) and `result`. */
  async result(id, { timeout = 60 } = {}) {
    const until = performance.now() + 1000 * timeout
    for (;;) {
      const wait = Math.max(0, Math.min(30, (until - performance.now()) / 1000))
      const ended = await this.#call('GET', `/jobs/${encodeURIComponent(id)}/result?wait=${wait.toFixed(3)}`)
      if (ended.outcome !== null || performance.now() >= until) return ended
    }
  }

  /** Give a job that waits another due time. */
  async reschedule(id, due) {
    await this.#call('PATCH', `/jobs/${encodeURIComponent(id)}`, { due: moment(due) })
  }

  /** Cancel a job. */
  async cancel(id) {
    await this.#call('DELETE', `/jobs/${encodeURIComponent(id)}`)
  }

  #call(method, path, body, headers = {}) {
    return this.#http.call(method, path, body, { patience: this.#patience, timeout: 45_000, headers })
  }
}
