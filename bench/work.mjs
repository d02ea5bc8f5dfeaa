// Run the worker process of one scheduler: `node bench/work.mjs NAME`. See bench/produce.mjs.

import { open } from './oracle.mjs'

const { work } = await import(`./schedulers/${process.argv[2]}.mjs`)
open()
const close = await work()
process.on('SIGTERM', async () => {
  await close()
  process.exit(0)
})
