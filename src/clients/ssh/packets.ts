import { createSecretKey, type KeyObject } from 'node:crypto'
import { setFlagsFromString } from 'node:v8'
import type { Client } from 'ssh2'

/**
 * The internals of ssh2 1.17.0 that are used. Another version may differ; it then runs at its own
 * speed.
 */
interface Inside {
  _protocol?: {
    _cipher?: { _encKey?: Buffer | KeyObject }
    _decipher?: { _decipherKey?: Buffer | KeyObject }
  }
}

/**
 * Makes this process count buffers as part of its heap. By V8's own rule every 64 MiB of them cause
 * a scan of the whole heap, and a stream from host to host makes three for each packet. 512 MiB
 * cause 25 such scans, which took 5 s in a process with 120 MB on its heap, and take 1.9.
 */
export const countBuffersWithHeap = (): void =>
  setFlagsFromString('--external-memory-accounted-in-global-limit')

/**
 * Passes the keys to ssh2's AES-GCM as objects, at each exchange of keys. ssh2 makes a cipher for
 * each packet of 32 KiB, and from bytes Node makes a key object each time: half of the processor
 * time of a stream.
 */
export const keepCipherKeys = (client: Client): void => {
  client.on('handshake', () => {
    const { _cipher: cipher, _decipher: decipher } = (client as unknown as Inside)._protocol ?? {}
    if (Buffer.isBuffer(cipher?._encKey)) cipher._encKey = createSecretKey(cipher._encKey)
    if (Buffer.isBuffer(decipher?._decipherKey))
      decipher._decipherKey = createSecretKey(decipher._decipherKey)
  })
}
