// A client that is not ours: runs the commands that it is given as JSON lists, and prints their replies as JSON.
import { createClient } from 'redis'

const [path, commands] = process.argv.slice(2)
const client = createClient({ socket: { path } })
await client.connect()
const replies = []
for (const command of JSON.parse(commands)) {
  replies.push(await client.sendCommand(command))
}
console.log(JSON.stringify(replies))
client.destroy()
