import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'

const searchPath = (process.env['PATH'] ?? '/usr/bin:/bin').split(':')

/**
 * The programs that this machine lacks; `packages` names the Debian package of each. Undefined
 * where it has all.
 */
export const programsMissing = (packages: Readonly<Record<string, string>>): string | undefined => {
  const absent = Object.entries(packages).filter(
    ([program]) => !searchPath.some((folder) => existsSync(join(folder, program))),
  )
  if (absent.length === 0) return undefined
  const names = [...new Set(absent.map(([, name]) => name))].join(' ')
  return `${absent.map(([program]) => program).join(', ')} missing (Debian: apt-get install ${names})`
}

/** The lack of GNU parallel. moreutils has another program of that name. */
export const parallelMissing = (): string | undefined =>
  /^GNU parallel/.test(spawnSync('parallel', ['--version'], { encoding: 'utf8' }).stdout ?? '')
    ? undefined
    : 'GNU parallel missing (Debian: apt-get install parallel)'

/** The lack of root, for a benchmark that starts its own hosts or engines. */
export const rootMissing = (): string | undefined =>
  process.getuid?.() === 0 ? undefined : 'only root can start its hosts (sudo npm run bench)'

/**
 * The lack of Python with venv. A `program` in an environment from an earlier run makes both
 * unnecessary.
 */
export const pythonMissing = (program: string): string | undefined =>
  existsSync(program) || spawnSync(systemPython(), ['-c', 'import ensurepip, venv']).status === 0
    ? undefined
    : 'Python with venv missing (Debian: apt-get install python3-venv)'

export const systemPython = (): string => (existsSync('/usr/bin/python3') ? '/usr/bin/python3' : 'python3')

/** All missing parts in one line; undefined where there are none. */
export const allMissing = (...missing: readonly (string | undefined)[]): string | undefined =>
  missing.filter((each) => each !== undefined).join('; ') || undefined
