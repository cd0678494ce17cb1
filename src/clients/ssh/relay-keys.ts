import { hkdfSync, type KeyObject } from 'node:crypto'
import type { ConnectionOptions, TlsOptions } from 'node:tls'

/** The keys that all processes of a fleet share; the first one opens connections, all are answered to. */
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

/** Not the keys themselves: what opens a connection opens no credential. */
export const relayKey = ({ id, secret }: FleetKey): RelayKey => ({
  id,
  secret: Buffer.from(hkdfSync('sha256', secret.export(), '', 'relay of logins', 32)),
})

/**
 * TLS 1.3 with a secret that both sides know before (RFC 8446, 2.2), and an exchange of new keys each time. SHA-256 belongs to such secrets
 * in OpenSSL, so this is the suite; no certificate is there, so a peer without the secret cannot end its handshake.
 */
const suite = { minVersion: 'TLSv1.3', ciphers: 'TLS_AES_128_GCM_SHA256', ALPNProtocols: ['h2'] } as const

export const serverTls = (keyOf: (id: string) => Buffer | undefined): TlsOptions => ({
  ...suite,
  handshakeTimeout: 5_000,
  pskCallback: (_socket, id) => keyOf(id) ?? null,
})

export const clientTls = ({ id, secret }: RelayKey): ConnectionOptions => ({
  ...suite,
  // Asked only where the other side came with a certificate instead of the secret; whose it is does not matter.
  checkServerIdentity: () => new Error('the other side does not know the key of the fleet'),
  ca: [],
  pskCallback: () => ({ identity: id, psk: secret }),
})
