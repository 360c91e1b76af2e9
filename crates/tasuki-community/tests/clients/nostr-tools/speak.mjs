// Speaks to a relay as nostr-tools does, and fails at the first answer that is not as it should be:
//   node speak.mjs ws://127.0.0.1:7447
import assert from 'node:assert/strict'
import { finalizeEvent, generateSecretKey, getPublicKey } from 'nostr-tools/pure'
import { Relay, useWebSocketImplementation } from 'nostr-tools/relay'
import WebSocket from 'ws'

useWebSocketImplementation(WebSocket)
const url = process.argv[2]
const key = generateSecretKey()
const author = getPublicKey(key)
const now = () => Math.floor(Date.now() / 1000)
const made = (kind, content, tags = [], at = now()) =>
  finalizeEvent({ kind, created_at: at, tags, content }, key)

// What is stored, in the order in which it comes.
const stored = (relay, filters) =>
  new Promise((resolve, reject) => {
    const events = []
    const subscription = relay.subscribe(filters, {
      onevent: event => events.push(event.id),
      oneose: () => {
        resolve(events)
        subscription.close()
      },
      onclose: reason => reject(new Error(reason)),
    })
  })

const eventually = async (what, look) => {
  const end = Date.now() + 20_000
  while (Date.now() < end) {
    if (await look()) return
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  assert.fail(`${what}: not in time`)
}

const relay = await Relay.connect(url)
const other = await Relay.connect(url)

// Publishes, and another hears of it.
const heard = []
let isClosed
await new Promise(resolve =>
  other.subscribe([{ kinds: [1], authors: [author] }], {
    onevent: event => heard.push(event.id),
    oneose: resolve,
    onclose: reason => (isClosed = reason),
  }),
)
const at = now()
const notes = [0, 1, 2].map(n => made(1, `a quick fox, number ${n}`, [['t', 'animals']], at - n))
for (const note of notes) await relay.publish(note)
await eventually('news', () => heard.length === 3)
assert.deepEqual(heard, notes.map(note => note.id))
assert.equal(isClosed, undefined)

// Again, it is known; changed, it is refused.
assert.match(await relay.publish(notes[0]), /^duplicate: /)
await assert.rejects(relay.publish({ ...notes[0], content: 'other' }), /invalid: id/)

// What is stored, newest first.
const ids = notes.map(note => note.id)
assert.deepEqual(await stored(relay, [{ authors: [author] }]), ids)
assert.deepEqual(await stored(relay, [{ '#t': ['animals'], limit: 2 }]), ids.slice(0, 2))
await assert.rejects(stored(relay, [{ kinds: [-1] }]), /invalid: kinds/)

// How many.
assert.equal(await relay.count([{ kinds: [1], authors: [author] }], {}), 3)
assert.equal(await relay.count([{ kinds: [7] }], {}), 0)

// By its words.
await eventually('search', async () => (await stored(relay, [{ search: 'foxes quick' }])).length === 3)
assert.deepEqual(await stored(relay, [{ search: 'elephant' }]), [])

// Only its author publishes what is protected, and proves that it is him.
const own = made(1, 'mine', [['-']])
await assert.rejects(relay.publish(own), /auth-required: /)
await relay.auth(async template => finalizeEvent(template, key))
assert.equal(await relay.publish(own), '')

// And deletes it.
await relay.publish(made(5, '', [['e', own.id], ['k', '1']]))
assert.deepEqual(await stored(relay, [{ ids: [own.id] }]), [])
await assert.rejects(relay.publish(own), /blocked: /)

relay.close()
other.close()
console.log('nostr-tools: all is well')
