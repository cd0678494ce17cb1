import { buffer } from 'node:stream/consumers'
import { hash } from 'node:crypto'
import { extract, pack } from 'tar-stream'
import { tarTime } from '../../tar-time.ts'
import { StorageError, type NewSmallFile, type SmallFile, type StorageDriver } from '../contract.ts'
import { bytesOf, isText, nameOf, quotedPath, temporaryName, textOf, type ByteName } from '../paths.ts'
import { yesOrNo, type Scripts } from './scripts.ts'

/** Largest answer: 8 MiB of files, their heads, and some files that have grown since. */
const mostBytes = 32 * 1024 * 1024

/** A line of `sha256sum`: names with a backslash or an end of line are escaped. */
const sumLine = ({ name, bytes }: NewSmallFile): Buffer => {
  const sum = hash('sha256', bytes)
  const escaped = name.replace(/[\\\n\r]/g, (letter) => ({ '\n': '\\n', '\r': '\\r' })[letter] ?? '\\\\')
  return Buffer.from(`${escaped === name ? '' : '\\'}${sum}  ${escaped}\n`, 'latin1')
}

/** An archive of the files, with a list of their digests. */
const archiveOf = async (files: readonly NewSmallFile[]): Promise<Buffer> => {
  const tar = pack()
  const sums = Buffer.concat(files.map(sumLine))
  tar.entry({ name: 'sums', mode: 0o600 }, sums)
  for (const { name, bytes, attributes: { mode = 0o644, modifiedAt = Date.now() } = {} } of files) {
    const pax = { mtime: (modifiedAt / 1_000).toFixed(3) }
    tar.entry({ name: `files/${textOf(name)}`, mode: mode & 0o777, ...tarTime(modifiedAt), pax }, bytes)
  }
  tar.finalize()
  return buffer(tar)
}

/** Regular files of an archive whose members are called `./NAME`. */
const filesOf = async (archive: Buffer): Promise<SmallFile[]> => {
  const files: SmallFile[] = []
  const tar = extract()
  tar.end(archive)
  for await (const member of tar) {
    const { name, type, mode, mtime, pax } = member.header
    const bytes = await buffer(member)
    if (type !== 'file' && type !== 'contiguous-file') continue
    const seconds = Number((pax as Record<string, string> | undefined)?.['mtime'])
    files.push({
      name: nameOf(name.replace(/^\.\//, '')),
      bytes,
      modifiedAt: Number.isFinite(seconds) ? Math.floor(seconds * 1_000) : mtime?.getTime(),
      mode: (mode ?? 0) & 0o777,
    })
  }
  return files
}

/** Many small files in one archive, packed and unpacked by the site's `tar`. */
export const smallFilesOf = ({ run, inFolder }: Scripts) =>
  ({
    async readMany(folder, names, { signal } = {}) {
      const texts = names.filter(isText)
      const input = Buffer.concat(
        texts.map((name) => Buffer.concat([Buffer.from('./'), bytesOf(name), Buffer.of(0)])),
      )
      if (texts.length === 0) return []
      const answer = await run(inFolder(folder).fed().line('get_many'), folder, {
        input,
        maxBytes: mostBytes,
        signal,
      })
      const end = answer.lastIndexOf(' ')
      const code = answer.toString('latin1', end + 1)
      if (code !== '0')
        throw new StorageError(
          code === '127' ? 'unsupported' : 'changed',
          `the tar of the site ends with code ${code} for files of ${quotedPath(folder)}; read them one by one`,
        )
      return filesOf(answer.subarray(0, end))
    },

    async writeMany(folder, files, { overwrite = false, signal } = {}) {
      const texts = files.filter(({ name }) => isText(name))
      const [first] = texts
      if (first === undefined) return []
      const place = temporaryName([...folder, first.name], first.upload)
      const line = `put_many ${yesOrNo(overwrite)} ${place}.d`
      const answer = await run(inFolder(folder).fed().line(line), folder, {
        input: await archiveOf(texts),
        signal,
      })
      const taken = new Set(answer.toString('latin1').split('\0'))
      return texts.map(({ name }) => name).filter((name: ByteName) => !taken.has(name))
    },
  }) satisfies Partial<StorageDriver>
