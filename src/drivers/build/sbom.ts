import { createWriteStream } from 'node:fs'
import { mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { startBubblewrap } from '../bubblewrap.ts'
import { BuildError } from './errors.ts'

/**
 * Lists the packages of an image as an SPDX 2.3 document, by syft in a sandbox: images are foreign,
 * and syft reads many formats.
 */

const limits = { seconds: 600, bytes: 64 * 2 ** 20 } as const
const sources = { sif: 'singularity', oci: 'oci-archive' } as const

/**
 * Writes the document of an image's file to `path`. It names the image by its digest alone, because
 * versions of the same bytes share it. @throws BuildError with the reason; the
 * signal's reason
 */
export const writeSbom = async (
  program: string,
  image: { path: string; format: keyof typeof sources; digest: string },
  path: string,
  { folder, signal }: { folder: string; signal: AbortSignal },
): Promise<void> => {
  const space = join(folder, 'sbom')
  await mkdir(space, { recursive: true, mode: 0o700 })
  const words = [
    ...['--unshare-all', '--die-with-parent', '--clearenv', '--cap-drop', 'ALL'],
    ...['--proc', '/proc', '--dev', '/dev', '--bind', space, '/tmp', '--ro-bind', program, '/syft'],
    ...['--ro-bind', image.path, '/image', '--setenv', 'HOME', '/tmp', '--setenv', 'TMPDIR', '/tmp'],
    ...['--setenv', 'SYFT_CHECK_FOR_APP_UPDATE', 'false', '--setenv', 'GOMEMLIMIT', '1GiB'],
    ...['--remount-ro', '/', '/syft', 'scan', `${sources[image.format]}:/image`],
    ...['--output', 'spdx-json@2.3', '--source-name', image.digest, '--source-version', image.digest],
  ]
  const child = startBubblewrap(words, {
    signal: AbortSignal.any([signal, AbortSignal.timeout(limits.seconds * 1_000)]),
  })
  let text = ''
  child.stderr.on('data', (piece: Buffer) => (text = (text + piece.toString()).slice(-1_000)))
  const ended = new Promise<void>((resolve, reject) => {
    child.once('error', (error: NodeJS.ErrnoException) =>
      reject(
        error.code === 'ENOENT'
          ? new BuildError('this host has no bwrap: install bubblewrap')
          : new BuildError(`syft was ended: ${error.message}`),
      ),
    )
    child.once('close', (code) =>
      code === 0 ? resolve() : reject(new BuildError(`syft ended with ${String(code)}: ${text.trim()}`)),
    )
  })
  let size = 0
  const written = pipeline(
    child.stdout,
    async function* (pieces: AsyncIterable<Buffer>) {
      for await (const piece of pieces) {
        if ((size += piece.length) > limits.bytes)
          throw new BuildError(`the document has more than ${limits.bytes} bytes`)
        yield piece
      }
    },
    createWriteStream(path, { mode: 0o600 }),
  ).catch((error: unknown) => {
    child.kill('SIGKILL')
    throw error
  })
  await Promise.allSettled([written, ended])
  await rm(space, { recursive: true, force: true })
  signal.throwIfAborted()
  // The program's end gives more detail than its cut output.
  await ended
  await written
}
