/** How long the other side of a WebSocket may be silent or slow, and how much may wait for it. */
export interface PeerPace {
  /** Between pings; one that is not answered before the next ends the connection. */
  pingMs: number
  /** Within which something of what waits must have gone out. */
  stallMs: number
  /** Bytes that wait to go out; a sender that does not await `send` is bounded by it. */
  mostWaitingBytes: number
}

export const usualPeerPace: PeerPace = { pingMs: 30_000, stallMs: 30_000, mostWaitingBytes: 8 * 1024 * 1024 }

/** The other side of a WebSocket, as a route sees it. */
export interface Peer {
  /** Texts and bytes in the order in which they came; ends with the connection. What is not taken is not read from the network. */
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

/** What a route does with a connection; its end closes it with 1000, an error with 1011. */
export type Attend = (peer: Peer) => Promise<void> | void
