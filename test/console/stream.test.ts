import { expect, test } from '@jest/globals'
import { Served } from '../../src/domains/console/served.ts'
import { attendSession } from '../../src/domains/console/stream.ts'
import type { Peer } from '../../src/http/peer.ts'

/** A connection that sends nothing and stays until it is closed. */
const openPeer = () => {
  const closed = Promise.withResolvers<number>()
  const peer: Peer = {
    // eslint-disable-next-line require-yield
    messages: (async function* () {
      await closed.promise
    })(),
    send: () => Promise.resolve(),
    signal: new AbortController().signal,
    close: (code = 1000) => closed.resolve(code),
  }
  return { peer, closed: closed.promise }
}

const refused = () => Promise.resolve(false)
const attend = (session: Served, peer: Peer, many: () => Promise<never[]>) =>
  attendSession(
    { db: { many }, keeper: { input: refused, resize: refused } },
    { id: 'session', session, peer, writes: true, takesOver: false },
  )

test('a connection that the database fails leaves the session to the next one', async () => {
  const session = new Served()
  const failing = attend(session, openPeer().peer, () => Promise.reject(new Error('it is away')))
  await expect(failing).rejects.toThrow('it is away')
  expect([session.writer, session.watchers.size]).toEqual([undefined, 0])
})

test('a connection to a session that has just ended is closed', async () => {
  const session = new Served()
  session.end()
  const { peer, closed } = openPeer()
  await attend(session, peer, () => Promise.resolve([]))
  expect(await closed).toBe(1000)
})
