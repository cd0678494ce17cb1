import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { open, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { pack, type Pack } from 'tar-stream'
import { hasStreams, noStreamsText } from '../../shell/has-streams.ts'
import { hasProgram, programPath } from '../machine-programs.ts'
import { BuildError } from './errors.ts'
import type { ImageFolder } from './image.ts'
import { pacedArchive } from './packing.ts'
import { addLayers, mergeLayers } from './layers.ts'

/**
 * Writes SIF files from images, without Apptainer: the same image gives the same bytes on every
 * machine. https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go
 */

const architectures: Readonly<Record<string, string>> = {
  '386': '01',
  amd64: '02',
  arm: '03',
  arm64: '04',
  ppc64: '05',
  ppc64le: '06',
  s390x: '10',
  riscv64: '11',
}

/** Offsets of the parts: the header, 48 descriptors of 585 bytes, the file system. */
const descriptorsAt = 4_096
const descriptorSize = 585
const descriptorCount = 48
const dataAt = descriptorsAt + descriptorSize * descriptorCount
/** Where the file system of a SIF file begins, in bytes. */
export const fileSystemAt = Math.ceil(dataAt / 4_096) * 4_096

const header = (given: { architecture: string; uuid: Buffer; time: number; dataSize: number }): Buffer => {
  const bytes = Buffer.alloc(128)
  bytes.write('#!/usr/bin/env run-singularity\n', 0, 'latin1')
  bytes.write('SIF_MAGIC', 32, 'latin1')
  bytes.write('01', 42, 'latin1')
  bytes.write(given.architecture, 45, 'latin1')
  given.uuid.copy(bytes, 48)
  const numbers = [
    ...[given.time, given.time, descriptorCount - 1, descriptorCount],
    ...[descriptorsAt, descriptorSize * descriptorCount, dataAt, given.dataSize],
  ]
  numbers.forEach((value, at) => bytes.writeBigInt64LE(BigInt(value), 64 + at * 8))
  return bytes
}

const lackText = 'this host has no sqfstar, which packs SIF files: install squashfs-tools (4.5 or newer)'

/** Why SIF files cannot be packed on this machine; undefined where they can. */
export const packingLack = (path?: string): string | undefined =>
  hasProgram('sqfstar', path) ? undefined : lackText

/** Describes the one part: the primary file system of an image, in squashfs. */
const descriptor = (given: { architecture: string; size: number; time: number }): Buffer => {
  const bytes = Buffer.alloc(descriptorSize)
  bytes.writeInt32LE(0x4004, 0)
  bytes.writeUInt8(1, 4)
  bytes.writeUInt32LE(1, 5)
  bytes.writeUInt32LE(0xf0000001, 9)
  bytes.writeUInt32LE(0, 13)
  const padding = fileSystemAt - dataAt
  const numbers = [fileSystemAt, given.size, given.size + padding, given.time, given.time, 0, 0]
  numbers.forEach((value, at) => bytes.writeBigInt64LE(BigInt(value), 17 + at * 8))
  bytes.writeInt32LE(1, 201)
  bytes.writeInt32LE(2, 205)
  bytes.write(given.architecture, 209, 'latin1')
  return bytes
}

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`

/** The files that Apptainer reads in an image: its environment, and its default command. */
const metadataFiles = (image: ImageFolder): Record<string, string> => {
  const variables = image.environment
    .map((each) => each.split(/=(.*)/s))
    .filter(([name = '']) => /^[A-Za-z_][A-Za-z0-9_]*$/.test(name))
  const environment = variables.map(([name = '', value = '']) =>
    name === 'PATH'
      ? `export PATH=${quoted(value)}`
      : `if [ -z "\${${name}+set}" ]; then export ${name}=${quoted(value)}; fi`,
  )
  const words = image.entrypoint.map(quoted).join(' ')
  const command = image.command.map(quoted).join(' ')
  return {
    '.singularity.d/env/10-docker2singularity.sh': `#!/bin/sh\n${environment.join('\n')}\n`,
    '.singularity.d/runscript':
      `#!/bin/sh\nif [ $# -gt 0 ]; then exec ${words} "$@"; fi\n` +
      `${words === '' && command === '' ? 'exec /bin/sh' : `exec ${words} ${command}`}\n`,
  }
}

/** Mount points of Apptainer, for images that lack them. */
const mountPoints = ['dev', 'proc', 'sys', 'tmp', 'var/tmp', 'root', 'home', 'etc']
const mountFiles = ['etc/resolv.conf', 'etc/hosts']

const addMetadata = (tar: Pack, image: ImageFolder, written: Set<string>): void => {
  const links = new Set([...written])
  for (const path of mountPoints)
    if (!links.has(path)) {
      const parent = path.includes('/') ? path.slice(0, path.indexOf('/')) : ''
      if (parent !== '' && !links.has(parent))
        tar.entry({ name: `${parent}/`, type: 'directory', mode: 0o755, mtime: new Date(0) })
      tar.entry({
        name: `${path}/`,
        type: 'directory',
        mode: /tmp$/.test(path) ? 0o1777 : 0o755,
        mtime: new Date(0),
      })
    }
  for (const path of mountFiles)
    if (!links.has(path)) tar.entry({ name: path, mode: 0o644, mtime: new Date(0) }, '')
  for (const path of ['.singularity.d', '.singularity.d/env'])
    if (!links.has(path)) tar.entry({ name: `${path}/`, type: 'directory', mode: 0o755, mtime: new Date(0) })
  for (const [name, text] of Object.entries(metadataFiles(image)))
    if (!links.has(name)) tar.entry({ name, mode: 0o755, mtime: new Date(0) }, text)
}

/** Runs a program to its end. @throws BuildError with the end of its output */
const packed = async (
  args: readonly string[],
  tar: Readable,
  { latest, signal }: { latest: number; signal: AbortSignal },
): Promise<void> => {
  const child = spawn('sqfstar', args, {
    stdio: ['pipe', 'ignore', 'pipe'],
    signal,
    // sqfstar 4.5 dates the root at the hour of the packing, whatever `-root-time` says; only this
    // variable moves it, and it moves every file that is younger.
    env: { PATH: programPath, SOURCE_DATE_EPOCH: String(latest) },
  })
  if (!hasStreams(child)) throw new Error(`sqfstar cannot be started: ${noStreamsText}`)
  let text = ''
  child.stderr.on('data', (piece: Buffer) => (text = (text + piece.toString()).slice(-2_000)))
  const ended = new Promise<void>((resolve, reject) => {
    child.once('error', (error: NodeJS.ErrnoException) =>
      reject(error.code === 'ENOENT' ? new BuildError(lackText) : error),
    )
    child.once('close', (code) =>
      code === 0 ? resolve() : reject(new BuildError(`sqfstar ended with ${String(code)}: ${text.trim()}`)),
    )
  })
  // The program's exit gives more detail than the broken pipe.
  const fed = pipeline(tar, child.stdin).catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code !== 'EPIPE') {
      child.kill('SIGKILL')
      throw error
    }
  })
  await Promise.all([ended, fed])
}

const packerVersion = (signal: AbortSignal): Promise<string> =>
  new Promise((resolve) => {
    const child = spawn('sqfstar', ['-version'], {
      stdio: ['ignore', 'pipe', 'ignore'],
      signal,
      env: { PATH: programPath },
    })
    if (!hasStreams(child)) return resolve('sqfstar')
    let text = ''
    child.stdout.on('data', (piece: Buffer) => (text += piece.toString()))
    child.once('error', () => resolve('sqfstar'))
    child.once('close', () => resolve(text.split('\n')[0]?.replace(/ \(.*/, '') ?? 'sqfstar'))
  })

/** A UUID of the content (RFC 9562, version 8). */
const uuidOf = (hash: Buffer): Buffer => {
  const uuid = Buffer.from(hash.subarray(0, 16))
  uuid[6] = ((uuid[6] ?? 0) & 0x0f) | 0x80
  uuid[8] = ((uuid[8] ?? 0) & 0x3f) | 0x80
  return uuid
}

const assemble = async (path: string, image: ImageFolder, squashed: string, time: number): Promise<void> => {
  const architecture = architectures[image.architecture]
  if (architecture === undefined)
    throw new BuildError(`SIF has no architecture ${JSON.stringify(image.architecture.slice(0, 40))}`)
  const { size } = await stat(squashed)
  const hash = createHash('sha256')
  await using file = await open(path, 'w', 0o600)
  let at = fileSystemAt
  for await (const piece of createReadStream(squashed, { highWaterMark: 1_048_576 })) {
    hash.update(piece as Buffer)
    await file.write(piece as Buffer, 0, (piece as Buffer).length, at)
    at += (piece as Buffer).length
  }
  const dataSize = size + fileSystemAt - dataAt
  await file.write(header({ architecture, uuid: uuidOf(hash.digest()), time, dataSize }), 0, 128, 0)
  await file.write(descriptor({ architecture, size, time }), 0, descriptorSize, descriptorsAt)
}

/**
 * Writes an image as a SIF file. @returns the program that packed it: another version may give
 * other bytes
 */
export const writeSif = async (
  image: ImageFolder,
  path: string,
  { folder, epoch, signal }: { folder: string; epoch?: number; signal: AbortSignal },
): Promise<string> => {
  const time = Math.min(image.created, epoch ?? image.created)
  const squashed = join(folder, 'squashed')
  await rm(squashed, { force: true })
  const merged = await mergeLayers(image.layers)
  const latest = Math.max(time, Math.min(merged.latest, epoch ?? merged.latest))
  const tar = pack()
  const { bytes, room } = pacedArchive(tar)
  const filled = addLayers(tar, image.layers, merged, { epoch, room })
    .then((written) => {
      addMetadata(tar, image, written)
      tar.finalize()
    })
    .catch((error: unknown) => {
      tar.destroy(error as Error)
      throw error
    })
  filled.catch(() => undefined)
  const options = ['-all-root', '-no-xattrs', '-no-progress', '-quiet', '-root-mode', '755']
  await packed([...options, squashed], bytes, { latest, signal }).catch(async (error: unknown) => {
    // The error that kept the archive from being complete gives more detail.
    if (tar.destroyed) await filled
    throw error
  })
  await filled
  await assemble(path, image, squashed, time)
  await rm(squashed, { force: true })
  return packerVersion(signal)
}
