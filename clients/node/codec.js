// Opens and seals arguments and results. docs/protocol.md, "Sealed values", has the form.
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'
import { deflateSync, inflateSync } from 'node:zlib'

const MARK = 'evsched.sealed'
const FIELDS = ['data', 'key', 'zip', 'of', 'ref']
const KEY = 32 // bytes: AES-256
const NONCE = 12 // bytes
const TAG = 16 // bytes
const OPENED_MOST = 64 * 1024 * 1024 // bytes: a short compressed value could otherwise take all memory
const DEPTH = 2 // lists and objects around a sealed value, at most: as a graph passes results on
const WHO = 'find out who can write to Redis'
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** The arguments of a job cannot be read: its key is missing, or they were changed, or belong elsewhere. */
export class CannotOpen extends Error {
  name = 'CannotOpen'
}

/** Opens the arguments of jobs and seals their results, with the keys of the app that has enqueued them. */
export class Codec {
  #keys
  #write
  #compressAbove
  #acceptPlain

  constructor(keys, { write, compressAbove = 1024, acceptPlain = true } = {}) {
    if (keys !== undefined && !Object.keys(Object(keys)).length) {
      throw new TypeError('Codec: keys has no key: give keys by their ids, or leave it out to compress only')
    }
    this.#keys = new Map(Object.entries(keys ?? {}).map(([id, key]) => [id, checkedKey(id, key)]))
    if (write === undefined && this.#keys.size > 1) throw new TypeError('Codec: say with `write` which key encrypts')
    if (write !== undefined && !this.#keys.has(write)) throw new TypeError(`Codec: there is no key ${write} to write`)
    this.#write = write ?? [...this.#keys.keys()][0]
    this.#compressAbove = compressAbove
    this.#acceptPlain = acceptPlain
  }

  /** Return the `args` and `kwargs` of a job opened. Those beside the sealed ones come after them. */
  openCall({ id, task, args, kwargs, sealed }) {
    try {
      if (!this.#accepts(task) && !(sealed?.key && [...args, ...Object.values(kwargs)].every(isEncrypted))) {
        throw new CannotOpen('they are not encrypted, and this worker takes no others: enqueue the job by the app')
      }
      const first = sealed ? checkedCall(this.#open('arguments', task, sealed, id)) : { args: [], kwargs: {} }
      const more = this.#opened([args, kwargs], DEPTH + 1)
      // Only results are added, and not to the arguments of one job: those are sealed as a whole.
      const names = Object.keys(more[1])
      if (sealed?.of ? more[0].length || names.length : names.some((name) => Object.hasOwn(first.kwargs, name))) {
        throw new Error(`somebody has put others beside them: ${WHO}`)
      }
      return { args: [...first.args, ...more[0]], kwargs: { ...first.kwargs, ...more[1] } }
    } catch (error) {
      throw new CannotOpen(`its arguments cannot be read: ${error.message}. Revive the job when it can be read`)
    }
  }

  /** Return the result of a job sealed, and null as it is: it says nothing. */
  sealResult(id, result) {
    const text = JSON.stringify(result) ?? 'null'
    if (text === 'null') return null
    const plain = Buffer.from(text)
    const packed = plain.length >= this.#compressAbove ? deflateSync(plain) : plain
    const zip = packed.length < plain.length ? 'zlib' : ''
    if (!zip && this.#write === undefined && !text.includes(MARK)) return result
    const data = this.#encrypted(zip ? packed : plain, bound('result', '', { of: id, zip }))
    return { [MARK]: { data: data.toString('base64'), key: this.#write, zip: zip || undefined, of: id } }
  }

  #accepts(task) {
    return Array.isArray(this.#acceptPlain) ? this.#acceptPlain.includes(task) : this.#acceptPlain
  }

  #encrypted(bytes, aad) {
    if (this.#write === undefined) return bytes
    const nonce = randomBytes(NONCE)
    const cipher = createCipheriv('aes-256-gcm', this.#keys.get(this.#write), nonce).setAAD(aad)
    return Buffer.concat([nonce, cipher.update(bytes), cipher.final(), cipher.getAuthTag()])
  }

  /** Return a value of JSON with the sealed results opened that are in it. */
  #opened(value, depth) {
    if (isSealed(value)) return this.#open('result', '', value[MARK])
    if (!depth || typeof value !== 'object' || value === null) return value
    if (Array.isArray(value)) return value.map((part) => this.#opened(part, depth - 1))
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, this.#opened(part, depth - 1)]))
  }

  /** Return the value of a sealed one, which must not name another job than `id`. */
  #open(what, name, sealed, id) {
    if (sealed.ref) throw new Error(`they are in a store, as ${sealed.ref}, which this worker does not read`)
    if (id !== undefined && sealed.of && sealed.of !== id) {
      throw new Error(`they were sealed for job ${sealed.of}, and somebody has put them into job ${id}`)
    }
    let bytes = Buffer.from(sealed.data ?? '', 'base64')
    if (sealed.key) bytes = this.#decrypted(bytes, sealed, bound(what, name, sealed))
    if (sealed.zip) bytes = inflateSync(bytes, { maxOutputLength: OPENED_MOST })
    try {
      return JSON.parse(utf8.decode(bytes))
    } catch {
      throw new Error(`once opened, they are not JSON: ${WHO}`)
    }
  }

  #decrypted(bytes, { key }, aad) {
    if (!this.#keys.has(key)) {
      const known = [...this.#keys.keys()].join(', ') || 'none'
      throw new Error(`key ${key} is missing, and this worker has ${known}: give it that key`)
    }
    try {
      const nonce = bytes.subarray(0, NONCE)
      const decipher = createDecipheriv('aes-256-gcm', this.#keys.get(key), nonce, { authTagLength: TAG })
      decipher.setAAD(aad).setAuthTag(bytes.subarray(-TAG))
      return Buffer.concat([decipher.update(bytes.subarray(NONCE, -TAG)), decipher.final()])
    } catch {
      throw new Error(
        `key ${key} does not fit: the ciphertext was changed, or is not of this task, or the key of that id is ` +
          `another one: ${WHO}`
      )
    }
  }
}

/** Return the additional data that a ciphertext is bound to. */
function bound(what, name, { of = '', zip = '' }) {
  return Buffer.from([what, name, of, zip].join('\n'))
}

/** Return opened arguments by position and by name. An empty one of them may be of the other kind (PHP, Lua). */
function checkedCall(opened) {
  const areTwo = Array.isArray(opened) && opened.length === 2
  if (!areTwo || !opened.every((part) => typeof part === 'object' && part !== null)) {
    throw new Error(`once opened, they are not a list and an object: ${WHO}`)
  }
  const [args, kwargs] = opened
  return { args: Array.isArray(args) ? args : [], kwargs: Array.isArray(kwargs) ? {} : kwargs }
}

function isSealed(value) {
  if (typeof value !== 'object' || value === null || Object.keys(value).join() !== MARK) return false
  const sealed = value[MARK]
  if (typeof sealed !== 'object' || sealed === null || !['', 'zlib'].includes(sealed.zip ?? '')) return false
  return Object.entries(sealed).every(([field, text]) => FIELDS.includes(field) && typeof text === 'string')
}

function isEncrypted(value) {
  if (Array.isArray(value)) return value.every(isEncrypted)
  return value === null || (isSealed(value) && Boolean(value[MARK].key))
}

function checkedKey(id, key) {
  const bytes = typeof key === 'string' ? Buffer.from(key, 'base64') : Buffer.from(key)
  if (bytes.length === KEY) return bytes
  throw new TypeError(`Codec: key ${id} has ${bytes.length} bytes, and AES-256 needs ${KEY}: openssl rand -base64 32`)
}
