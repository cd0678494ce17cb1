import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { builtOnce, onSearchPath, type ProgramOptions } from './go-build.ts'

const version = 'v1.57.0'

export interface SbomProgramOptions extends ProgramOptions {
  /** `found`: where it is here; `make`: built once where it is not; `off`: never. */
  mode: 'found' | 'make' | 'off'
}

/**
 * The program syft, which lists the packages of an image: that of the cache, else of the search
 * path, else built from its Go module in about two minutes of two cores.
 * @returns its path, or why there is none
 */
export const openSbomProgram =
  ({ mode, cacheDir, environment, log, onProgress }: SbomProgramOptions) =>
  async (): Promise<{ path: string } | { lack: string }> => {
    if (mode === 'off') return { lack: 'SERVICE_SBOM is off' }
    const target = join(cacheDir, 'syft', version, 'syft')
    if (existsSync(target)) return { path: target }
    const found = onSearchPath('syft', environment)
    if (found !== undefined) return { path: found }
    if (mode === 'found')
      return { lack: 'this host has no syft; install it, or have it built once by SERVICE_SBOM=make' }
    try {
      const path = await builtOnce({
        title: 'the lister of packages (syft)',
        source: 'github.com/anchore/syft/cmd/syft',
        module: `module build\n\ngo 1.26\n\nrequire github.com/anchore/syft ${version}\n`,
        flags: ['-mod=mod', '-modcacherw'],
        linkerFlags: `-X main.version=${version.slice(1)}`,
        settings: { CGO_ENABLED: '0' },
        target,
        cacheDir,
        environment,
        log,
        onProgress,
        remedy: 'Install Go 1.26 or newer.',
      })
      return { path }
    } catch (error) {
      return { lack: error instanceof Error ? (error.message.split('\n')[0] ?? '') : String(error) }
    }
  }
