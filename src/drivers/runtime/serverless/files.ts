import { hash, randomBytes } from 'node:crypto'
import { lstatSync, mkdirSync, rmSync } from 'node:fs'
import { chmod, copyFile, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { DriverError } from '../contract/driver.ts'
import { systemPath } from '../../../outside-path.ts'
import { isErrno } from '../contract/errno.ts'
import type { CallRecords } from './calls.ts'
import type { CallAnswer, CallInput, CallOutput } from './protocol.ts'
import { foldersAbove } from '../contract/links.ts'
import { checksum } from '../local/manifest.ts'
import type { StagedFile } from '../local/staging.ts'

const sha256Of = async (path: string, sizeBytes: number): Promise<string> =>
  (await checksum(path, sizeBytes)).slice('sha256:'.length)

/** Bytes of JSON that the contents of these files take in a request. */
export const inlineBytes = (staged: readonly StagedFile[]): number =>
  staged.reduce(
    (sum, { path, sizeBytes }) => sum + Math.ceil(sizeBytes / 3) * 4 + Buffer.byteLength(path) + 160,
    0,
  )

/**
 * The files of a work directory as inputs of a request: with their contents, or with `urlOf(path)`
 * as their source.
 */
export const readInputs = async (
  directory: string,
  staged: readonly StagedFile[],
  urlOf: ((path: string) => string) | undefined,
): Promise<CallInput[]> => {
  const inputs: CallInput[] = []
  for (const { path, target, unread } of staged) {
    if (unread !== undefined) continue
    if (target !== undefined) {
      inputs.push({ path, mode: 0o777, sizeBytes: 0, sha256: hash('sha256', ''), target })
      continue
    }
    const file = join(directory, path)
    const { mode, size } = lstatSync(systemPath(file))
    if (urlOf !== undefined)
      inputs.push({
        path,
        mode: mode & 0o777,
        sizeBytes: size,
        sha256: await sha256Of(file, size),
        url: urlOf(path),
      })
    else {
      const content = await readFile(systemPath(file))
      inputs.push({
        path,
        mode: mode & 0o777,
        sizeBytes: content.length,
        sha256: hash('sha256', content),
        contentBase64: content.toString('base64'),
      })
    }
  }
  return inputs
}

const refuse = (message: string): never => {
  throw new DriverError('refused', message)
}

/** @throws DriverError `refused` where the content does not match the answer */
const checkContent = (output: CallOutput, sizeBytes: number, sha256: string): void => {
  const what = `output ${JSON.stringify(output.path)}`
  if (sizeBytes !== output.sizeBytes)
    refuse(`${what} has ${sizeBytes} bytes, and the function promised ${output.sizeBytes}`)
  if (sha256 !== output.sha256)
    refuse(`${what} has the digest ${sha256}, and the function promised ${String(output.sha256)}`)
}

/**
 * Makes the folders above an output. A link on the way might lead outside; a file on the way blocks
 * it.
 */
const makeWay = (directory: string, path: string): void => {
  let at = directory
  for (const part of path.split('/').slice(0, -1)) {
    at = join(at, part)
    const found = lstatSync(systemPath(at), { throwIfNoEntry: false })
    if (found === undefined) mkdirSync(systemPath(at), { mode: 0o755 })
    else if (!found.isDirectory())
      refuse(`output ${JSON.stringify(path)} lies below ${JSON.stringify(part)}, which is no folder`)
  }
}

/** Whether no link is on the way to a path: it might lead outside. */
const isBelowFolders = (directory: string, path: string): boolean =>
  foldersAbove(path).every(
    (folder) =>
      lstatSync(systemPath(join(directory, folder)), { throwIfNoEntry: false })?.isDirectory() === true,
  )

const put = async (draft: string, directory: string, path: string): Promise<void> => {
  makeWay(directory, path)
  const to = systemPath(join(directory, path))
  try {
    await rename(draft, to)
  } catch (error) {
    if (!isErrno(error, 'EISDIR', 'ENOTEMPTY', 'EEXIST', 'ENOTDIR')) throw error
    // The command has created a file where its input had a folder.
    await rm(to, { recursive: true, force: true })
    await rename(draft, to)
  }
}

/**
 * Writes the outputs of a checked answer into the work directory, each whole or not at all; a
 * repeat has the same result. All are compared with their digests before the first one is written.
 *
 * @throws DriverError `refused` where an output does not match the answer
 */
export const applyOutputs = async (
  calls: CallRecords,
  name: string,
  directory: string,
  answer: CallAnswer,
): Promise<void> => {
  const contents = new Map<string, Buffer>()
  for (const output of answer.outputs) {
    if (output.target !== undefined) continue
    if (output.contentBase64 !== undefined) {
      const content = Buffer.from(output.contentBase64, 'base64')
      checkContent(output, content.length, hash('sha256', content))
      contents.set(output.path, content)
      continue
    }
    const upload = calls.uploadOf(name, output.path)
    const found = await stat(upload).catch((error: unknown) => {
      if (isErrno(error, 'ENOENT'))
        return refuse(
          `output ${JSON.stringify(output.path)} was not uploaded, although the function reports it as uploaded`,
        )
      throw error
    })
    checkContent(
      output,
      found.size,
      found.size === output.sizeBytes ? await sha256Of(upload, found.size) : '',
    )
  }
  for (const path of answer.deleted)
    if (isBelowFolders(directory, path))
      rmSync(systemPath(join(directory, path)), { recursive: true, force: true })
  const links = answer.outputs.filter(({ target }) => target !== undefined)
  for (const output of [...answer.outputs.filter(({ target }) => target === undefined), ...links]) {
    const draft = join(dirname(calls.path(name, 'outputs')), `draft-${randomBytes(6).toString('hex')}`)
    const content = contents.get(output.path)
    if (output.target !== undefined) await symlink(systemPath(output.target), draft)
    else if (content !== undefined) await writeFile(draft, content, { mode: output.mode ?? 0o644 })
    else await copyFile(calls.uploadOf(name, output.path), draft)
    if (output.target === undefined && output.mode !== undefined) await chmod(draft, output.mode)
    await put(draft, directory, output.path)
  }
}
