import { readProgram, sumProgram } from '../../../shell/program.ts'
import { quote } from '../../../shell/quote.ts'
import { LinkError, type ShellStream, type SiteShell } from '../../../shell/site-shell.ts'
import {
  StorageError,
  type Attributes,
  type Entry,
  type StorageFault,
  type Watch,
  type WriteOptions,
} from '../contract.ts'
import { linkFault, nameIn, notFile, siteFault, writtenTo, wrongOffset } from '../faults.ts'
import { bytesOf, isText, quotedPath, textOf, type ByteName, type StoragePath } from '../paths.ts'

const program = sumProgram + readProgram(import.meta.dirname, 'storage.sh')
const usualDeadlineMs = 60_000
/** `ssh` gives a silent link up after a minute by itself, and its message is the better one. */
const usualStallMs = 300_000

/**
 * A word of `sh` with these bytes, and the commands that make it: a script cannot contain bytes
 * that are no text.
 */
const wordOf = (name: ByteName, variable: string): { word: string; before: string } => {
  if (isText(name)) return { word: quote(textOf(name)), before: '' }
  const octal = [...bytesOf(name)].map((byte) => `\\0${byte.toString(8).padStart(3, '0')}`).join('')
  return {
    word: `"$${variable}"`,
    before: `${variable}=$(printf '%b.' '${octal}')\n${variable}=\${${variable}%.}\n`,
  }
}

/** Calls of the program: the commands before them, and the paths as `sh` text. */
export class Script {
  #before = ''
  #count = 0
  #calls = ''

  word(name: ByteName): string {
    this.#count += 1
    const { word, before } = wordOf(name, `w${this.#count}`)
    this.#before += before
    return word
  }
  walk(base: string, folder: StoragePath): this {
    return this.line(['walk', quote(base), ...folder.map((name) => this.word(name))].join(' '))
  }
  /** Bytes follow on standard input: a refusal reads them to their end, or for so many seconds. */
  fed(seconds: number | 'end' = 'end'): this {
    this.#before += `fed=${seconds}\n`
    return this
  }
  line(text: string): this {
    this.#calls += `${text}\n`
    return this
  }
  toString(): string {
    return `${program}\n${this.#before}${this.#calls}`
  }
}

export const faultOf = (text: string, path: StoragePath): StorageError => {
  const [, fault = 'refused', detail = ''] = /^!(\w+) ?([\s\S]*?)\n?$/.exec(text) ?? []
  if (fault === 'offset') return wrongOffset(path, Number(detail))
  if (fault === 'notFile') return notFile(path, detail === 'special' ? 'special' : 'directory')
  return siteFault(fault as StorageFault, path, { said: printable(detail) })
}
const printable = (text: string): string => text.replace(/[^\x20-\x7e]+/g, ' ').slice(0, 200)

/** The shell of a site ends without an answer of the program. */
export const endedShell = ({ code, stderr }: { code: number | null; stderr: string }): StorageError =>
  new StorageError('refused', `the shell of the site ended with code ${code ?? 'none'}: ${printable(stderr)}`)

export const siteErrorOf = (error: unknown): Error => {
  if (error instanceof LinkError) return linkFault(error)
  if (error instanceof RangeError)
    return new StorageError('refused', `the site answers more than is taken: ${error.message}`)
  return error as Error
}

/** Fields of `find`: flags, type, size, times, inode, mode; name; the target of a link. */
export const entriesOf = (bytes: Buffer, isBase = false): Entry[] => {
  const fields = bytes.toString('latin1').split('\0')
  const entries: Entry[] = []
  for (let at = 0; at + 2 < fields.length; at += 3) {
    const [facts = '', name = '', target = ''] = fields.slice(at, at + 3)
    const [flags = '', size = '0', modified = '0', changed = '', inode = '', mode = ''] = facts.split(' ')
    const type = ({ f: 'file', d: 'directory', l: 'symlink' } as const)[flags[2] ?? ''] ?? 'special'
    const plain = type === 'file' || type === 'directory'
    entries.push({
      name: (isBase ? '' : name) as ByteName,
      type,
      ...(type === 'file'
        ? { sizeBytes: Number(size), etag: `"${inode}-${size}-${modified}-${changed}"` }
        : {}),
      modifiedAt: Math.floor(Number(modified) * 1_000),
      readable: plain && flags[0] === 'r',
      writable: plain && flags[1] === 'w',
      ...(plain && mode !== '' ? { mode: parseInt(mode, 8) & 0o777 } : {}),
      ...(type === 'symlink' ? { linkTarget: target as ByteName } : {}),
    })
  }
  return entries
}

export const firstOf = (bytes: Buffer, path: StoragePath, isBase = false): Entry => {
  const [entry] = entriesOf(bytes, isBase)
  if (entry === undefined) throw siteFault('missing', path)
  return entry
}

/** Rejects when the signal is aborted; work that has begun goes on until its deadline. */
export const orAborted = async <T>(begin: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> => {
  if (signal === undefined) return begin()
  signal.throwIfAborted()
  const { promise, reject } = Promise.withResolvers<never>()
  const leave = (): void => reject(signal.reason as Error)
  signal.addEventListener('abort', leave, { once: true })
  const work = begin()
  work.catch(() => undefined)
  try {
    return await Promise.race([work, promise])
  } finally {
    signal.removeEventListener('abort', leave)
  }
}

/**
 * Opens a script. One that opens after the signal was aborted is ended at once, and `afterLate`
 * then removes what it may have begun.
 */
export const openScript = async (
  shell: SiteShell,
  script: string,
  { signal, afterLate }: Watch & { afterLate?: () => Promise<unknown> },
): Promise<ShellStream> => {
  let opening: Promise<ShellStream> | undefined
  try {
    return await orAborted(() => (opening = shell.open(script)), signal)
  } catch (error) {
    void endLate(opening, afterLate).catch(() => undefined)
    throw error
  }
}
const endLate = async (
  opening: Promise<ShellStream> | undefined,
  afterLate?: () => Promise<unknown>,
): Promise<void> => {
  const stream = await opening
  if (stream === undefined) return
  stream.kill()
  await stream.done.catch(() => undefined)
  await afterLate?.()
}

export interface ShellStorageOptions {
  /** Closing the storage leaves it open. */
  shell: SiteShell
  /**
   * An absolute path at the site. Links on the way to it are followed, since the site's
   * administrator made them.
   */
  base: string
  deadlineMs?: number
  /** A file that is read, or goes from site to site, is given up after so long without a byte. */
  stallMs?: number
}

/** Scripts at a folder of a site, and their answers. */
export const openScripts = ({
  shell,
  base,
  deadlineMs = usualDeadlineMs,
  stallMs = usualStallMs,
}: ShellStorageOptions) => {
  const run = async (
    script: Script,
    path: StoragePath,
    options: Watch & { input?: Buffer; maxBytes?: number; deadlineMs?: number } = {},
  ): Promise<Buffer> => {
    const { signal, ...rest } = options
    try {
      const answer = await orAborted(() => shell.run(script.toString(), { deadlineMs, ...rest }), signal)
      const { stdout } = answer
      if (stdout[0] === 0x2b) return stdout.subarray(1)
      throw stdout[0] === 0x21 ? faultOf(stdout.toString(), path) : endedShell(answer)
    } catch (error) {
      throw siteErrorOf(error)
    }
  }
  /** A script at the folder of an entry, and the word of its name. */
  const beside = (path: StoragePath, begun = new Script()): { script: Script; name: string } => {
    const last = nameIn(path)
    const script = begun.walk(base, path.slice(0, -1))
    return { script, name: script.word(last) }
  }
  const inFolder = (folder: StoragePath): Script => new Script().walk(base, folder)

  return { shell, base, stallMs, run, beside, inFolder }
}
export type Scripts = ReturnType<typeof openScripts>

export const siteDigest = async (
  { beside, run }: Scripts,
  path: StoragePath,
  signal: AbortSignal | undefined,
): Promise<string> => {
  const { script, name } = beside(path)
  // A site hashes a TiB within some hours.
  const answer = await run(script.line(`digest ${name}`), path, { signal, deadlineMs: 6 * 3_600_000 })
  const [digest = '', before, after] = answer.toString('latin1').split('\0')
  if (!/^[0-9a-f]{64}$/.test(digest))
    throw new StorageError(
      'refused',
      `the site gives no digest of ${quotedPath(path)}; see whether it has sha256sum`,
    )
  if (before !== after) throw writtenTo(path)
  return digest
}

/** As a word of the program. */
export const yesOrNo = (may: boolean | undefined): string => (may === true ? 'yes' : 'no')
/** Words of `put`: the mode in octal digits, and the time in seconds. */
export const attributeWords = ({ mode, modifiedAt }: Attributes = {}): string =>
  `'${mode === undefined ? '' : (mode & 0o777).toString(8)}' '${secondsWord(modifiedAt)}'`
export const secondsWord = (modifiedAt: number | undefined): string =>
  modifiedAt === undefined ? '' : (modifiedAt / 1_000).toFixed(3)

/**
 * All that a script prints. A refusal that has come counts, whatever becomes of the link after it.
 */
export const collected = async (stream: ShellStream, onRefusal: () => void): Promise<string> => {
  let text = Buffer.alloc(0)
  const isRefusal = (): boolean => text[0] === 0x21 && text.at(-1) === 0x0a
  try {
    for await (const chunk of stream.stdout as AsyncIterable<Buffer>) {
      text = Buffer.concat([text, chunk])
      if (isRefusal()) onRefusal()
    }
    await stream.done
  } catch (error) {
    if (!isRefusal()) throw error
  }
  return text.toString()
}

/** Gives the whole temporary file of an upload its mode, its time and its name. @returns its entry */
export const putFile = async (
  { beside, run }: Scripts,
  path: StoragePath,
  given: Pick<WriteOptions, 'overwrite' | 'attributes' | 'signal'> & { temporary: string; sizeBytes: number },
): Promise<Entry> => {
  const { script, name } = beside(path)
  const words = `${name} ${yesOrNo(given.overwrite)} ${given.temporary} ${given.sizeBytes}`
  const line = `put ${words} ${attributeWords(given.attributes)}`
  return firstOf(await run(script.line(line), path, { signal: given.signal }), path)
}
