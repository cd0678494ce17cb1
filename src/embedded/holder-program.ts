import { hash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { builtOnce, type ProgramOptions } from './go-build.ts'

const folder = join(import.meta.dirname, '../domains/console/holder')
const source = join(folder, 'holder.go')

/** Machines on which terminals can be held, by the output of `uname -m`. */
const architectures: Readonly<Record<string, string>> = { x86_64: 'amd64', aarch64: 'arm64' }

/** A program for one kind of machine. */
export interface HolderProgram {
  path: string
  /** Derived from source and machine: an existing program of this name need not be copied again. */
  name: string
}

/**
 * The holder of terminals (`holder.go`) for a machine, built at its first use. @throws Error for an
 * unsupported machine
 */
export const openHolderPrograms =
  ({ cacheDir, environment, log, onProgress }: ProgramOptions) =>
  async (machine: string): Promise<HolderProgram> => {
    const architecture = architectures[machine]
    if (architecture === undefined)
      throw new Error(
        `terminals cannot be held on a machine of type ${JSON.stringify(machine)}; it must be one ` +
          `of ${Object.keys(architectures).join(', ')}`,
      )
    const digest = hash('sha256', readFileSync(source)).slice(0, 16)
    const name = `console-holder-${digest}-${architecture}`
    // The place in the image, which has no Go.
    const beside = join(folder, `holder-${architecture}`)
    if (existsSync(beside)) return { path: beside, name }
    const path = await builtOnce({
      title: 'the holder of terminals',
      source,
      flags: [],
      settings: { CGO_ENABLED: '0', GOOS: 'linux', GOARCH: architecture },
      target: join(cacheDir, 'console-holder', digest, architecture, name),
      cacheDir,
      environment,
      log,
      onProgress,
      remedy: 'Install Go 1.22 or newer (https://go.dev/dl/; Debian 13: golang-go), or leave the console off',
    })
    return { path, name }
  }

export type HolderPrograms = ReturnType<typeof openHolderPrograms>
