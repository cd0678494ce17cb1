import { mkdir, open, rename } from 'node:fs/promises'
import { dirname, join, posix } from 'node:path'
import { namedPath } from '../../outside-path.ts'
import { DriverError, type Collected, type Left, type RuntimeDriver } from '../runtime/contract/driver.ts'
import { emptyResult } from '../runtime/contract/results.ts'
import type { RootedDriver } from '../runtime/contract/rooted.ts'
import { LinkError } from '../../shell/site-shell.ts'
import { transfer, type TransferSide } from './transfer.ts'

export interface KeepingOptions {
  /** The site whose machine may be gone later. */
  from: () => Promise<TransferSide>
  /** This machine. */
  to: TransferSide
  /** Root of the work directories here; the copies have the same paths below it as at the site. */
  workRoot: string
  /** Only what is in this folder of the work directories is copied; undefined: any. */
  folder?: string | undefined
  /** The name of this machine, for readers of the files. */
  host: string
}

/** The logs of a kept attempt, beside the copy of its work directory. */
export const keptLogFile = (directory: string, stream: 'stdout' | 'stderr'): string =>
  `${directory}.${stream}`

const logSliceBytes = 1024 * 1024
/** Of a longer log the first part is kept. */
const mostLogBytes = 256 * 1024 * 1024

/**
 * A driver whose attempts are over only when their files and logs are off the machine: `collect`
 * first copies the work directory and both logs to this machine, verified, then answers, with the
 * copy's place. A repeat resumes. A machine that is lost meanwhile has not completed
 * the attempt.
 */
export const withKeeping = <D extends RootedDriver>(driver: D, options: KeepingOptions): D => {
  const { workRoot, host, folder } = options

  const placeOf = async (root: string): Promise<string | undefined> => {
    const inside = posix.relative(posix.join(await driver.root(), 'work'), root)
    const [first] = inside.split('/')
    const isBelow =
      inside !== '' &&
      first !== '..' &&
      !posix.isAbsolute(inside) &&
      (folder === undefined || first === folder)
    return isBelow ? join(workRoot, inside) : undefined
  }
  const keepFiles = async (
    name: string,
    from: string,
    directory: string,
  ): Promise<{ problem?: string; left?: readonly Left[] | undefined }> => {
    try {
      return await transfer({
        ...{ from: await options.from(), to: options.to, directory, label: name },
        ...{ source: { directory: from }, for: name },
      })
    } catch (error) {
      // A directory that was never made, or too many files: no repeat changes that. A refused login
      // says nothing about the files: a machine that goes down refuses it too.
      if (
        error instanceof DriverError &&
        (error.trouble === 'user' || error.trouble === 'refused') &&
        !(error.cause instanceof LinkError)
      )
        return { problem: error.message }
      throw new DriverError('unknown', `its files are not off the machine yet: ${String(error)}`, {
        cause: error,
      })
    }
  }
  const keepLog = async (name: string, directory: string, stream: 'stdout' | 'stderr'): Promise<void> => {
    const file = keptLogFile(directory, stream)
    await mkdir(dirname(file), { recursive: true, mode: 0o711 })
    const handle = await open(`${file}.part`, 'w', 0o600)
    try {
      for (let offset = 0; offset < mostLogBytes;) {
        const { bytes, totalBytes } = await driver.logs(name, stream, { offset, limit: logSliceBytes })
        await handle.write(bytes, 0, bytes.length, offset)
        offset += bytes.length
        if (bytes.length === 0 || offset >= totalBytes) break
      }
    } finally {
      await handle.close()
    }
    await rename(`${file}.part`, file)
  }

  const kept = async (name: string, collected: Collected): Promise<Collected> => {
    const { manifest, state } = collected
    if (state.state !== 'ended' || manifest.root === '') return collected
    const directory = await placeOf(manifest.root)
    if (directory === undefined) return collected
    const parts = [
      keepFiles(name, manifest.root, directory),
      keepLog(name, directory, 'stdout'),
      keepLog(name, directory, 'stderr'),
    ] as const
    // A part that went on after the failure of another would write into the files of the next call.
    await Promise.allSettled(parts)
    const [{ problem, left = [] }] = await Promise.all(parts)
    const detail = {
      ...collected.detail,
      ...{ keptOn: host, keptAt: directory },
      ...(problem === undefined ? {} : { keptWithoutFiles: problem }),
    }
    const warnings = [
      ...(manifest.warnings ?? []),
      ...left.map(({ path, why }) => `${namedPath(path)} has no copy on ${host}: ${why}`),
    ]
    return {
      ...collected,
      detail,
      manifest: warnings.length === 0 ? manifest : { ...manifest, warnings },
    }
  }

  return { ...driver, collect: async (name, onWait) => kept(name, await driver.collect(name, onWait)) }
}

/**
 * The driver of a machine that is gone: all attempts there are lost, and none starts. `cause`: the
 * provider's word for it.
 */
export const goneDriver = (
  cause: string,
  driver: Pick<RuntimeDriver, 'kind' | 'capabilities'>,
): RuntimeDriver => {
  const state = { state: 'lost', externalId: 'none', startedAt: 0, cause } as const
  const gone = new DriverError('infrastructure', cause)
  return {
    ...{ kind: driver.kind, capabilities: driver.capabilities },
    submit: (intents) => Promise.resolve(intents.map(({ name }) => ({ name, ok: false, error: gone }))),
    find: (names) => Promise.resolve(new Map(names.map((name) => [name, state]))),
    watch: () => () => undefined,
    cancel: () => Promise.resolve(),
    collect: () => Promise.resolve(emptyResult(state)),
    logs: () => Promise.reject(gone),
    remove: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
}
