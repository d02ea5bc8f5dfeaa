// A receiver that is not ours: prints the body of a signed request, if the signature is valid.
import { Webhook } from 'standardwebhooks'

const [secret, received] = process.argv.slice(2)
const { headers, body } = JSON.parse(received)
console.log(JSON.stringify(new Webhook(secret).verify(body, headers)))
