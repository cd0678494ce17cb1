import { createSecretKey, type KeyObject } from 'node:crypto'
import { setFlagsFromString } from 'node:v8'
import type { Client } from 'ssh2'

/** What ssh2 1.17.0 has inside; all of it may be otherwise in the next version, which then has its own speed. */
interface Inside {
  _protocol?: {
    _cipher?: { _encKey?: Buffer | KeyObject }
    _decipher?: { _decipherKey?: Buffer | KeyObject }
  }
}

/**
 * Has this process count buffers as part of its heap. By V8's own rule every 64 MiB of them are a reason to look through the whole heap,
 * and a stream from host to host makes three for each packet: 25 such passes for 512 MiB, which took 5 s in a process with 120 MB on its
 * heap, and takes 1.9.
 */
export const countBuffersWithHeap = (): void => setFlagsFromString('--external-memory-accounted-in-global-limit')

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
