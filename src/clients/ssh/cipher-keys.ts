import { createSecretKey, type KeyObject } from 'node:crypto'
import type { Client } from 'ssh2'

/** What ssh2 1.17.0 has inside; all of it may be otherwise in the next version, which then has its own speed. */
interface Inside {
  _protocol?: {
    _cipher?: { _encKey?: Buffer | KeyObject }
    _decipher?: { _decipherKey?: Buffer | KeyObject }
  }
}

/**
 * Gives ssh2's AES-GCM its keys as objects, at each exchange of keys. It makes a cipher for each packet of 32 KiB, and from bytes Node makes
 * a key object each time: half of the processor time that a stream costs.
 */
export const keepCipherKeys = (client: Client): void => {
  client.on('handshake', () => {
    const { _cipher: cipher, _decipher: decipher } = (client as unknown as Inside)._protocol ?? {}
    if (Buffer.isBuffer(cipher?._encKey)) cipher._encKey = createSecretKey(cipher._encKey)
    if (Buffer.isBuffer(decipher?._decipherKey)) decipher._decipherKey = createSecretKey(decipher._decipherKey)
  })
}
