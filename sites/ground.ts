import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { identify, isAlive } from '../src/embedded/processes.ts'
import { removeAtEnd } from './remover.ts'

/**
 * What every site stands on: a working folder outside the checkout, a token that keeps its names apart from those of every other site of
 * the machine, and a leash, so that neither process nor folder outlives the one who started the site, however that one ends.
 */
export interface Ground {
  /** `/tmp/orrery-site-<kind>-<token>`: world-traversable, since sshd, munged and the accounts of the site must reach it. */
  readonly folder: string
  /** 8 hexadecimal digits. */
  readonly token: string
  /** Removes the folder. Harmless when called again. */
  leave(): Promise<void>
}

const prefix = 'orrery-site-'

/** Opens the ground for a new site, after taking away what a dead owner may have left (when the remover itself was killed). */
export const openGround = (kind: string): Ground => {
  sweep()
  const folder = mkdtempSync(join(tmpdir(), `${prefix}${kind}-`))
  chmodSync(folder, 0o755)
  writeFileSync(join(folder, 'owner.json'), JSON.stringify(identify(process.pid)))
  // Hosts of the site end by themselves in the moment in which their owner ends (see `guest.pl`).
  const { leave } = removeAtEnd(folder)
  return { folder, token: randomBytes(4).toString('hex'), leave }
}

/** Folders whose owner is gone: processes of the site ended with the owner, so only files can have stayed. */
const sweep = (): void => {
  for (const name of readdirSync(tmpdir()).filter((entry) => entry.startsWith(prefix))) {
    const file = join(tmpdir(), name, 'owner.json')
    if (!existsSync(file)) continue
    try {
      const owner: unknown = JSON.parse(readFileSync(file, 'utf8'))
      if (isAlive(owner as { pid: number; startTicks: number })) continue
      rmSync(join(tmpdir(), basename(name)), { recursive: true, force: true })
    } catch {
      // Another start is sweeping the same folder, or the remover is at it.
    }
  }
}

export interface Answer {
  code: number | null
  stdout: string
  stderr: string
}

/** Runs a program of this machine to its end. @throws Error with its last words when it fails, unless `mayFail` */
export const run = (
  program: string,
  args: readonly string[],
  options: { input?: string | undefined; mayFail?: boolean; environment?: Record<string, string>; deadlineMs?: number } = {},
): Promise<Answer> =>
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
      // It ended without reading its input; its code tells why.
    })
    child.once('error', reject)
    child.once('close', (code) => {
      const answer = { code, stdout: Buffer.concat(out).toString(), stderr: Buffer.concat(err).toString() }
      if (code === 0 || options.mayFail === true) resolve(answer)
      else
        reject(
          new Error(
            `${program} ${args.join(' ')} ${code === null ? 'was ended, at the latest by its deadline' : `ended with ${code}`}: ${answer.stderr.slice(-2000)}${answer.stdout.slice(-500)}`,
          ),
        )
    })
    child.stdin?.end(options.input ?? '')
  })

/** Asks until the answer is yes. @throws Error naming what was awaited, with what `why` says, after `deadlineMs` (default 120 s) */
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

/** A folder that is made when missing. */
export const folderAt = (path: string, mode = 0o755): string => {
  mkdirSync(path, { recursive: true })
  chmodSync(path, mode)
  return path
}
