import { hkdfSync, type KeyObject } from 'node:crypto'
import type { ConnectionOptions, TlsOptions } from 'node:tls'

/**
 * The keys that all processes of a fleet share. The first one opens connections; connections with
 * any of them are accepted.
 */
export interface FleetKeys {
  primary(): Promise<FleetKey>
  all(): Promise<readonly FleetKey[]>
}
interface FleetKey {
  id: string
  secret: KeyObject
}

/** The secret of a connection between two processes. */
export interface RelayKey {
  id: string
  secret: Buffer
}

/** Derived from the key: the secret of a connection opens no credential. */
export const relayKey = ({ id, secret }: FleetKey): RelayKey => ({
  id,
  secret: Buffer.from(hkdfSync('sha256', secret.export(), '', 'relay of logins', 32)),
})

/**
 * TLS 1.3 with a pre-shared secret (RFC 8446, 2.2) and a new key exchange each time. OpenSSL ties
 * such secrets to SHA-256, which fixes the suite. There is no certificate, so a peer without the
 * secret cannot complete its handshake.
 */
const suite = { minVersion: 'TLSv1.3', ciphers: 'TLS_AES_128_GCM_SHA256', ALPNProtocols: ['h2'] } as const

export const serverTls = (keyOf: (id: string) => Buffer | undefined): TlsOptions => ({
  ...suite,
  handshakeTimeout: 5_000,
  pskCallback: (_socket, id) => keyOf(id) ?? null,
})

export const clientTls = ({ id, secret }: RelayKey): ConnectionOptions => ({
  ...suite,
  // Called only where the other side sent a certificate instead of the secret; its owner does not
  // matter.
  checkServerIdentity: () => new Error('the other side does not know the key of the fleet'),
  ca: [],
  pskCallback: () => ({ identity: id, psk: secret }),
})
