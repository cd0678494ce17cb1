/**
 * Limits of a WebSocket's other side: its silence, its slowness, and the bytes that wait for it.
 */
export interface PeerPace {
  /** Time between pings. A ping without an answer before the next one ends the connection. */
  pingMs: number
  /** Time within which some of the waiting bytes must be sent. */
  stallMs: number
  /**
   * The limit of bytes that wait to be sent. It also bounds a sender that does not await `send`.
   */
  mostWaitingBytes: number
}

export const usualPeerPace: PeerPace = { pingMs: 30_000, stallMs: 30_000, mostWaitingBytes: 8 * 1024 * 1024 }

/** The other side of a WebSocket, in the form that a route uses. */
export interface Peer {
  /**
   * Texts and bytes in the order of their arrival. The iteration ends with the connection. Messages
   * that the route does not take are not read from the network.
   */
  readonly messages: AsyncIterable<string | Buffer>
  /** A text or binary message; resolves once it has left this process. @throws PeerGone */
  send(message: string | Uint8Array): Promise<void>
  /** Aborted when the connection is over. */
  readonly signal: AbortSignal
  /** Ends the connection: 1000 is a usual end, 4000–4999 are a route's own codes. */
  close(code?: number, reason?: string): void
}

/** The connection is over: it was closed, lost, or cut for being slow. */
export class PeerGone extends Error {}

/** A route's work on a connection. Its end closes the connection with 1000, an error with 1011. */
export type Attend = (peer: Peer) => Promise<void> | void
