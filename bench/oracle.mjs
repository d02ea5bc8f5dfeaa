// The oracle of bench/oracle.py for Node, which has no shared memory: it writes into the same file.
//
// A write for each job would cost some microseconds. So the jobs of one turn of the event loop are written together,
// with the time at which each ran. No other process writes into the table.

import { fstatSync, openSync, writeSync } from 'node:fs'

let file, table
let first = Infinity
let last = -1

// Return Unix milliseconds. Node's exact clock is set when the process starts, and does not follow the wall clock, which
// has whole milliseconds; so the exact one counts within the millisecond of the other.
function now() {
  const whole = Date.now()
  return Math.min(Math.max(performance.timeOrigin + performance.now(), whole), whole + 1)
}

function write() {
  writeSync(file, table, 8 * first, 8 * (last - first + 1), 8 * first)
  first = Infinity
  last = -1
}

// Open the table, before jobs run.
export function open() {
  file = openSync(process.env.BENCH_ORACLE, 'r+')
  table = Buffer.alloc(fstatSync(file).size)
}

// Note that the job of this number runs now.
export function stamp(number) {
  table.writeDoubleLE(now() / 1000, 8 * number)
  if (last < 0) setImmediate(write)
  first = Math.min(first, number)
  last = Math.max(last, number)
}
