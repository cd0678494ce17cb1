import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { open, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { PassThrough, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip } from 'node:zlib'

/**
 * The opponent of `large-context`: a plain Node handler that writes a body to a file, syncs it,
 * hashes it and expands it to nowhere, at once. Prints its port.
 */

const path = join(process.argv[2] ?? '.', 'plain-upload')
const server = createServer((request, response) => {
  void (async () => {
    const hash = createHash('sha256')
    const [toFile, toGunzip] = [new PassThrough(), new PassThrough()]
    request.on('data', (piece: Buffer) => hash.update(piece))
    request.pipe(toFile)
    request.pipe(toGunzip)
    await Promise.all([
      pipeline(toFile, createWriteStream(path)),
      pipeline(toGunzip, createGunzip(), new Writable({ write: (_, __, done) => done() })),
    ])
    const file = await open(path, 'r')
    await file.sync()
    await file.close()
    await rm(path)
    response.end(`sha256:${hash.digest('hex')}`)
  })()
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${String((server.address() as { port: number }).port)}\n`)
})
