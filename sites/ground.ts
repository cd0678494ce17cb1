import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { identify, stillRuns } from '../src/embedded/processes.ts'
import { removeAtEnd } from './remover.ts'

/**
 * The base of every site: a working folder outside the checkout, a token that keeps its names apart
 * from those of the machine's other sites, and a remover, so that neither process nor folder
 * outlives the owner of the site, however the owner ends.
 */
export interface Ground {
  /**
   * `/tmp/orrery-site-<kind>-<token>`: world-traversable, because sshd, munged and the accounts of
   * the site must reach it.
   */
  readonly folder: string
  /** 8 hexadecimal digits. */
  readonly token: string
  /** Removes the folder. A repeated call is harmless. */
  leave(): Promise<void>
}

const prefix = 'orrery-site-'

/**
 * Opens the ground for a new site, after it has removed leftovers of a dead owner (whose remover
 * was killed too).
 */
export const openGround = (kind: string): Ground => {
  sweep()
  const folder = mkdtempSync(join(tmpdir(), `${prefix}${kind}-`))
  chmodSync(folder, 0o755)
  writeFileSync(join(folder, 'owner.json'), JSON.stringify(identify(process.pid)))
  // Hosts of the site end at the same moment as their owner (see `guest.pl`).
  const { leave } = removeAtEnd(folder)
  return { folder, token: randomBytes(4).toString('hex'), leave }
}

/**
 * Removes folders of dead owners. Processes of such a site ended with the owner, so only files can
 * remain.
 */
const sweep = (): void => {
  for (const name of readdirSync(tmpdir()).filter((entry) => entry.startsWith(prefix))) {
    const file = join(tmpdir(), name, 'owner.json')
    if (!existsSync(file)) continue
    try {
      const owner: unknown = JSON.parse(readFileSync(file, 'utf8'))
      if (stillRuns(owner as { pid: number; startTicks: number })) continue
      rmSync(join(tmpdir(), basename(name)), { recursive: true, force: true })
    } catch {
      // Another start sweeps the same folder, or its remover does.
    }
  }
}

export interface CommandAnswer {
  code: number | null
  stdout: string
  stderr: string
}

/**
 * Runs a program of this machine to its end. @throws Error with the end of its output when it
 * fails, unless `mayFail`
 */
export const run = (
  program: string,
  args: readonly string[],
  options: {
    input?: string | undefined
    mayFail?: boolean
    environment?: Record<string, string>
    deadlineMs?: number
  } = {},
): Promise<CommandAnswer> =>
  new Promise((resolve, reject) => {
    const child: ChildProcess = spawn(program, args, {
      cwd: '/',
      stdio: 'pipe',
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8', ...options.environment },
      timeout: options.deadlineMs ?? 120_000,
      killSignal: 'SIGKILL',
    })
    const out: Buffer[] = []
    const err: Buffer[] = []
    child.stdout?.on('data', (chunk: Buffer) => out.push(chunk))
    child.stderr?.on('data', (chunk: Buffer) => err.push(chunk))
    child.stdin?.on('error', () => {
      // The program ended without reading its input. Its exit code is the result.
    })
    child.once('error', reject)
    child.once('close', (code) => {
      const answer = { code, stdout: Buffer.concat(out).toString(), stderr: Buffer.concat(err).toString() }
      if (code === 0 || options.mayFail === true) resolve(answer)
      else
        reject(
          new Error(
            `${program} ${args.join(' ')} ` +
              `${code === null ? 'was ended, at the latest by its deadline' : `ended with ${code}`}: ` +
              `${answer.stderr.slice(-2000)}${answer.stdout.slice(-500)}`,
          ),
        )
    })
    child.stdin?.end(options.input ?? '')
  })

/**
 * Repeats `ask` until it returns true. @throws Error naming the awaited condition, with the text of
 * `why`, after `deadlineMs` (default 120 s)
 */
export const until = async (
  what: string,
  ask: () => Promise<boolean>,
  why: () => string = () => '',
  deadlineMs = 120_000,
): Promise<void> => {
  const deadline = Date.now() + deadlineMs
  while (!(await ask())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${deadlineMs / 1000} s\n${why()}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}

/** Creates a missing folder. @returns its path */
export const folderAt = (path: string, mode = 0o755): string => {
  mkdirSync(path, { recursive: true })
  chmodSync(path, mode)
  return path
}

/** Processes below a process, from the kernel. */
export const descendants = (pid: number): number[] => {
  let own: number[]
  try {
    own = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number)
  } catch {
    return []
  }
  return own.flatMap((child) => [child, ...descendants(child)])
}
