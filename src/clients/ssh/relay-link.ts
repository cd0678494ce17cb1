import { connect as connectHttp2, type ClientHttp2Session } from 'node:http2'
import { connect as connectTls, type TLSSocket } from 'node:tls'
import { within } from '../../pacing/within.ts'
import { NotHeld } from './relay-frames.ts'
import { clientTls, relayKey, type FleetKeys, type RelayKey } from './relay-keys.ts'
import { windowBytes } from './relay-server.ts'

const connectMs = 3_000
const pingMs = 5_000
/** A process that is silent this long counts as gone. */
const silenceMs = 20_000
const idleMs = 60_000
/** Number of keys that are tried: the other side may not have received the first one yet. */
const mostKeys = 4

/** One connection to another process, opened when needed and shared by all calls to it. */
export class RelayLink {
  readonly #address: string
  readonly #keys: FleetKeys
  #session: Promise<ClientHttp2Session> | undefined
  #closed = false
  /** Calls under way. */
  calls = 0

  constructor(address: string, keys: FleetKeys) {
    this.#address = address
    this.#keys = keys
  }

  /** @throws NotHeld when no process of the fleet answers there */
  async session(): Promise<ClientHttp2Session> {
    if (this.#closed) throw new NotHeld('the relay is closed')
    const connecting = (this.#session ??= this.#connect())
    try {
      const session = await connecting
      if (!session.destroyed && !session.closed) return session
    } catch (error) {
      this.#forget(connecting)
      throw error
    }
    // It ends at this moment.
    this.#forget(connecting)
    return this.session()
  }

  close(): void {
    this.#closed = true
    this.#session?.then(
      (session) => session.destroy(),
      () => undefined,
    )
  }

  #forget(session: Promise<ClientHttp2Session>): void {
    if (this.#session === session) this.#session = undefined
  }

  async #connect(): Promise<ClientHttp2Session> {
    const [primary, all] = await Promise.all([this.#keys.primary(), this.#keys.all()])
    const keys = [primary, ...all.filter(({ id }) => id !== primary.id)].slice(0, mostKeys)
    let failure: unknown
    for (const key of keys) {
      try {
        return this.#speak(await secured(this.#address, relayKey(key)))
      } catch (error) {
        failure = error
        // Another key does not help where no process answers; a refused key may end the connection
        // in any way.
        if (
          /^E(?:CONNREFUSED|TIMEDOUT|NOTFOUND|AI_AGAIN|HOSTUNREACH|NETUNREACH)$/.test(
            (error as NodeJS.ErrnoException).code ?? '',
          )
        )
          break
      }
    }
    const reason = failure instanceof Error ? failure.message : String(failure)
    throw new NotHeld(`no connection to the process at ${this.#address}: ${reason}`)
  }

  #speak(socket: TLSSocket): ClientHttp2Session {
    const session = connectHttp2('https://relay', {
      createConnection: () => socket,
      settings: { enablePush: false, initialWindowSize: windowBytes.stream },
      maxSessionMemory: 256,
    })
    session.on('error', () => undefined)
    session.once('connect', () => session.setLocalWindowSize(windowBytes.connection))
    let heard = performance.now()
    let used = heard
    const timer = setInterval(() => {
      if (session.destroyed) return
      const now = performance.now()
      if (this.calls > 0) used = now
      if (now - heard > silenceMs || now - used > idleMs) session.destroy()
      else session.ping(() => (heard = performance.now()))
    }, pingMs)
    timer.unref()
    session.once('close', () => clearInterval(timer))
    if (this.#closed) session.destroy()
    return session
  }
}

const secured = (address: string, key: RelayKey): Promise<TLSSocket> => {
  const [, bracketed, plain, port] = /^(?:\[(.+)\]|([^:]+)):(\d+)$/.exec(address) ?? []
  const socket = connectTls({ ...clientTls(key), host: bracketed ?? plain ?? '', port: Number(port) })
  socket.setNoDelay(true)
  const secure = new Promise<TLSSocket>((resolve, reject) => {
    socket.once('error', reject)
    socket.once('close', () => reject(new Error('the connection was closed')))
    socket.once('secureConnect', () => {
      socket.removeListener('error', reject)
      resolve(socket)
    })
  })
  return within(secure, connectMs, () =>
    Object.assign(new Error(`no answer within ${connectMs / 1_000} s`), { code: 'ETIMEDOUT' }),
  ).catch((error: unknown) => {
    socket.on('error', () => undefined)
    socket.destroy()
    throw error
  })
}
