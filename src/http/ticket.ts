import type { IncomingMessage } from 'node:http'

const prefix = 'orrery.ticket.'

/**
 * The ticket among the subprotocols of a WebSocket's handshake; undefined where there is none. A
 * page can put a ticket only there or in the address, and an address would show it to proxies and
 * logs.
 */
export const ticketOf = (req: IncomingMessage): string | undefined =>
  (req.headers['sec-websocket-protocol'] ?? '')
    .split(',')
    .map((name) => name.trim())
    .find((name) => name.startsWith(prefix))
    ?.slice(prefix.length)

/** A ticket as the subprotocol that carries it. */
export const ticketProtocol = (secret: string): string => `${prefix}${secret}`
