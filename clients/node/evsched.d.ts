export interface Connection {
  /** Where `evsched api` is, such as `http://127.0.0.1:8420`. */
  url: string
  /** A token of the API: a worker needs one that may work, a client one that may write. */
  token?: string
  /** Default: `default`. */
  queue?: string
}

/** A run of a job, as its handler gets it. Times are Unix seconds. */
export interface Job {
  readonly id: string
  readonly task: string
  readonly args: any[]
  readonly kwargs: Record<string, any>
  /** The number of this run, from 1, and how many the job may have. */
  readonly attempt: number
  readonly attempts: number
  readonly due: number
  /** The due of the first attempt: `id:planned` names the job for receivers that must not act twice. */
  readonly planned: number
  /** Seconds that the run may take. */
  readonly timeout: number | null
  readonly meta: Record<string, any>
  /** Aborted when the run is to stop; its `reason` is a `Stopped`. */
  readonly signal: AbortSignal
  /** Report how far the run is. */
  progress(done: number, total?: number | null, note?: string): void
}

export type Handler = (job: Job) => unknown

export interface WorkerOptions extends Connection {
  /** A handler for each task. Its result is that of the job. */
  tasks: Record<string, Handler>
  /** How many jobs run at the same time, 1 to 100. Default: 1. */
  concurrency?: number
  /** No two processes may have the same. Default: host, process id and random characters. */
  name?: string
  /** Seconds that a fetch waits for a job, 0 to 60. Default: 30. */
  wait?: number
  /** Seconds that `stop` leaves to the runs. Default: 30. */
  grace?: number
  /** Opens sealed arguments, and seals results. Without one, jobs with sealed arguments are dead. */
  codec?: Codec
  /** Called with errors that end no run and not the worker. Default: `console.error`. */
  onError?: (error: unknown) => void
}

/** Opens arguments that an app has encrypted or compressed, and seals results: docs/encryption.md. */
export class Codec {
  /** The keys by their ids, each 32 random bytes, or their base64. All of them read. */
  constructor(
    keys?: Record<string, string | Uint8Array>,
    options?: {
      /** The id of the key that encrypts results. Default: the only key. */
      write?: string
      /** Bytes from which on a result is compressed; Infinity: never. Default: 1024. */
      compressAbove?: number
      /** Whether jobs run whose arguments are not encrypted, or the tasks of which they do. Default: true. */
      acceptPlain?: boolean | string[]
    },
  )
}

/** Runs the jobs of one queue. */
export class Worker {
  constructor(options: WorkerOptions)
  readonly name: string
  /** Run jobs until `stop` is called and the last one has ended. Rejects if the API refuses the worker. */
  run(): Promise<void>
  /** Fetch no more, let the runs end, for `grace` seconds at most, and hand the others back. */
  stop(): Promise<void>
}

/** The options of a job: docs/api.md. */
export interface JobOptions {
  args?: unknown[]
  kwargs?: Record<string, unknown>
  /** A moment: Unix seconds, ISO 8601 with an offset, or a Date. */
  due?: number | string | Date
  /** Seconds from now. Give `due` or `delay`. */
  delay?: number
  id?: string
  on_conflict?: 'replace' | 'keep'
  unique?: { key?: unknown; within?: number }
  priority?: number
  group?: string
  timeout?: number
  retry?: { attempts?: number; interval?: number; factor?: number; max_interval?: number; jitter?: number }
  retention?: number
  expires?: number | string
  meta?: Record<string, unknown>
  tags?: string[]
  redact?: string[]
  window?: string
}

export interface Scheduled {
  id: string
  queue: string
  due: number | null
}

export interface Ended {
  id: string
  /** null: it has not ended. */
  outcome: 'done' | 'dead' | 'expired' | 'cancelled' | null
  result: any
  reason: string | null
}

/** Enqueues jobs, and looks them up. */
export class Client {
  constructor(options: Connection & { /** Seconds for which a request is repeated. Default: 30. */ patience?: number })
  /** Enqueue a job. A request that is repeated makes no second job. */
  enqueue(task: string, options?: JobOptions): Promise<Scheduled>
  /** Return where a job is, and its record. */
  status(id: string): Promise<Record<string, any>>
  /** Wait until a job has ended, for `timeout` seconds at most (default 60). */
  result(id: string, options?: { timeout?: number }): Promise<Ended>
  /** Give a job that waits another due time: Unix seconds, ISO 8601 with an offset, or a Date. */
  reschedule(id: string, due: number | string | Date): Promise<void>
  /** Cancel a job. */
  cancel(id: string): Promise<void>
}

/** The API has refused a request. */
export class Problem extends Error {
  readonly status: number
  /** For programs: docs/api.md lists them. */
  readonly code: string
}

/** Thrown by a handler: the job is not to run again. */
export class GiveUp extends Error {}

/** Thrown by a handler: the job is to run again in so many seconds, which costs an attempt. */
export class RetryLater extends Error {
  constructor(seconds: number, message?: string)
  readonly seconds: number
}

/** The reason of a run's signal. */
export class Stopped extends Error {
  readonly why: 'cancelled' | 'lost' | 'timeout' | 'stopping'
}
