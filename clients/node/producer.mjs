// The producer of docs/conformance.md.
import { createInterface } from 'node:readline'
import { Client, Problem } from './evsched.js'

const { CONFORMANCE_API, CONFORMANCE_TOKEN, CONFORMANCE_QUEUE } = process.env
const client = new Client({ url: CONFORMANCE_API, token: CONFORMANCE_TOKEN, queue: CONFORMANCE_QUEUE })

const verbs = {
  enqueue: ({ job: { task, ...options } }) => client.enqueue(task, options),
  reschedule: ({ id, due }) => client.reschedule(id, due),
  cancel: ({ id }) => client.cancel(id),
  result: ({ id }) => client.result(id),
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  let reply
  try {
    const answer = verbs[request.verb]
    reply = answer ? ((await answer(request)) ?? {}) : { unsupported: `the client has no ${request.verb}` }
  } catch (error) {
    if (!(error instanceof Problem)) throw error
    reply = { error: error.message }
  }
  console.log(JSON.stringify(reply))
}
