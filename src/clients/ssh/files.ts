import type { FileEntryWithStats, SFTPWrapper, Stats } from 'ssh2'
import { FilesError, type FileFacts, type OpenSiteFile, type SiteFiles } from '../../shell/site-files.ts'
import { LinkError } from '../../shell/site-shell.ts'
import { within } from '../../pacing/within.ts'
import { printableMessage } from './printable.ts'

const requestMs = 60_000
const kinds: Readonly<Record<number, FileFacts['type']>> = {
  0o100000: 'file',
  0o040000: 'directory',
  0o120000: 'symlink',
}

const factsOf = ({ mode, size, mtime }: Pick<Stats, 'mode' | 'size' | 'mtime'>): FileFacts => ({
  type: kinds[mode & 0o170000] ?? 'special',
  sizeBytes: size,
  modifiedSeconds: mtime,
  mode: mode & 0o777,
})

/** Times of SFTP version 3 have 32 bits: a time from before 1970 or after February 2106 becomes the nearest. */
const latestSeconds = 2 ** 32 - 1
const timeOf = (seconds: number): number => Math.min(Math.max(seconds, 0), latestSeconds)

/** Codes of SFTP version 3. */
const codes: Readonly<Record<number, FilesError['code']>> = { 2: 'missing', 3: 'denied', 8: 'unsupported' }
const lostCodes = new Set([6, 7])

const errorOf = (error: Error): Error => {
  const { code } = error as { code?: unknown }
  if (typeof code !== 'number' || lostCodes.has(code))
    return new LinkError('link', `the link was lost: ${printableMessage(error)}`, { cause: error })
  return new FilesError(codes[code] ?? 'failure', printableMessage(error).slice(0, 200), { cause: error })
}

type Answer<T> = (error: Error | null | undefined, value: T) => void

/**
 * Requests over one SFTP channel that `connect` opens, again after it was lost. A request without
 * an answer in time ends the channel.
 */
const openRequests = (connect: () => Promise<SFTPWrapper>) => {
  let opened: Promise<SFTPWrapper> | undefined
  let isOpen = true
  const gone = new WeakSet<SFTPWrapper>()
  const waiting = new Map<SFTPWrapper, Set<(error: Error) => void>>()
  const lostLink = (): LinkError => new LinkError('link', 'the link was lost: the SFTP channel has ended')

  const channel = (): Promise<SFTPWrapper> => {
    if (!isOpen) return Promise.reject(new LinkError('link', 'these files are closed'))
    if (opened !== undefined) return opened
    const own = connect()
    opened = own
    const forget = (): void => {
      if (opened === own) opened = undefined
    }
    own.then((sftp) => {
      // A request on a channel that is gone is never answered.
      const lost = (): void => {
        forget()
        gone.add(sftp)
        for (const reject of waiting.get(sftp) ?? []) reject(lostLink())
        waiting.delete(sftp)
      }
      sftp.once('close', lost)
      sftp.on('error', lost)
    }, forget)
    return own
  }
  const ask = async <T>(
    send: (sftp: SFTPWrapper, answer: Answer<T>) => void,
    on?: SFTPWrapper,
  ): Promise<T> => {
    const sftp = on ?? (await channel())
    if (gone.has(sftp)) throw lostLink()
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    const all = waiting.get(sftp) ?? new Set()
    waiting.set(sftp, all.add(reject))
    try {
      send(sftp, (error, value) => {
        if (error === undefined || error === null) resolve(value)
        else reject(errorOf(error))
      })
      return await within(promise, requestMs, () => {
        sftp.end()
        return new FilesError('late', `the SFTP server does not answer within ${requestMs / 1_000} s`)
      })
    } catch (error) {
      if (error instanceof FilesError || error instanceof LinkError) throw error
      throw /does not support/.test(printableMessage(error))
        ? new FilesError('unsupported', printableMessage(error))
        : new LinkError('link', `the link was lost: ${printableMessage(error)}`, { cause: error as Error })
    } finally {
      all.delete(reject)
    }
  }

  const close = async (): Promise<void> => {
    isOpen = false
    const sftp = await opened?.catch(() => undefined)
    sftp?.end()
  }
  return { channel, ask, close }
}

/** Files over one SFTP channel, see `openRequests`. */
export const openFiles = (connect: () => Promise<SFTPWrapper>): SiteFiles => {
  const { channel, ask, close } = openRequests(connect)
  const openFile = async (path: string, mode: 'read' | 'create' | 'continue'): Promise<OpenSiteFile> => {
    const flags = { read: 'r', create: 'wx', continue: 'r+' } as const
    const sftp = await channel()
    let closed: Promise<void> | undefined
    const handle = await ask<Buffer>((on, answer) => on.open(path, flags[mode], 0o666, answer), sftp)
    return {
      facts: async () => factsOf(await ask<Stats>((on, answer) => on.fstat(handle, answer), sftp)),
      async read(offset, length) {
        const bytes = Buffer.allocUnsafe(length)
        let done = 0
        while (done < length) {
          const count = await ask<number>(
            (on, answer) =>
              on.read(handle, bytes, done, length - done, offset + done, (error, got) => answer(error, got)),
            sftp,
          )
          if (count === 0) break
          done += count
        }
        return bytes.subarray(0, done)
      },
      write: (offset, bytes) =>
        ask<undefined>(
          (on, answer) =>
            on.write(handle, bytes, 0, bytes.length, offset, (error) => answer(error, undefined)),
          sftp,
        ),
      async sync() {
        try {
          await ask((on, answer: Answer<unknown>) => on.ext_openssh_fsync(handle, answer), sftp)
        } catch (error) {
          if (!(error instanceof FilesError) || error.code !== 'unsupported') throw error
        }
      },
      // The server gives the same handle to the next file: a second close would close that one.
      close: () =>
        (closed ??= ask<undefined>(
          (on, answer) => on.close(handle, (error) => answer(error, undefined)),
          sftp,
        )),
    }
  }

  const done = (send: (sftp: SFTPWrapper, answer: (error?: Error | null) => void) => void): Promise<void> =>
    ask<undefined>((sftp, answer) => send(sftp, (error) => answer(error, undefined)))

  return {
    lstat: async (path) => factsOf(await ask<Stats>((sftp, answer) => sftp.lstat(path, answer))),
    readdir: async (path) =>
      (await ask<FileEntryWithStats[]>((sftp, answer) => sftp.readdir(path, answer)))
        .filter(({ filename }) => filename !== '.' && filename !== '..')
        .map(({ filename, attrs }) => ({ name: filename, facts: factsOf(attrs) })),
    readlink: (path) => ask<string>((sftp, answer) => sftp.readlink(path, answer)),
    symlink: (target, path) => done((sftp, answer) => sftp.symlink(target, path, answer)),
    mkdir: (path) => done((sftp, answer) => sftp.mkdir(path, answer)),
    unlink: (path) => done((sftp, answer) => sftp.unlink(path, answer)),
    rename: (from, to, replaces) =>
      done((sftp, answer) =>
        replaces ? sftp.ext_openssh_rename(from, to, answer) : sftp.rename(from, to, answer),
      ),
    setAttributes: (path, { mode, modifiedSeconds }) =>
      done((sftp, answer) =>
        sftp.setstat(
          path,
          {
            ...(mode === undefined ? {} : { mode }),
            ...(modifiedSeconds === undefined
              ? {}
              : { atime: Math.floor(Date.now() / 1_000), mtime: timeOf(modifiedSeconds) }),
          },
          answer,
        ),
      ),
    truncate: (path, size) => done((sftp, answer) => sftp.setstat(path, { size }, answer)),
    async freeBytes(path) {
      try {
        const { f_bavail: blocks, f_frsize: size } = await ask<
          Record<'f_bavail' | 'f_frsize', number | bigint>
        >((sftp, answer) => sftp.ext_openssh_statvfs(path, answer))
        return Number(blocks) * Number(size)
      } catch (error) {
        if (error instanceof FilesError && error.code === 'unsupported') return undefined
        throw error
      }
    },
    open: openFile,
    close,
  }
}
