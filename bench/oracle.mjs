// The oracle of bench/oracle.py for Node, which has no shared memory: a write of eight bytes into the same file.

import { openSync, writeSync } from 'node:fs'

const cell = Buffer.alloc(8)
const path = process.env.BENCH_ORACLE
let file

// Return Unix milliseconds. Node's exact clock is set when the process starts, and keeps no step with the wall clock,
// which has whole milliseconds; so the exact one counts within the millisecond of the other.
function now() {
  const whole = Date.now()
  return Math.min(Math.max(performance.timeOrigin + performance.now(), whole), whole + 1)
}

// Note that the job of this number runs now.
export function stamp(number) {
  file ??= openSync(path, 'r+')
  cell.writeDoubleLE(now() / 1000)
  writeSync(file, cell, 0, 8, 8 * number)
}
