import { createHash } from 'node:crypto'
import { assign, readProgram } from '../../../shell/program.ts'
import { quote } from '../../../shell/quote.ts'
import type { RunOptions, ShellResult, SiteShell } from '../../../shell/site-shell.ts'
import { DriverError } from '../contract/driver.ts'
import { asDriverError } from '../contract/results.ts'
import { errorTextOf } from './error-text.ts'
import { wrapper } from './wrapper.ts'

/** Facts that are read once, at the first contact, and again after a restart of the site. */
export interface RemoteSiteFacts {
  /** Absolute. */
  root: string
  /** Id of the running system: process ids and uptimes of another mean nothing. */
  boot: string
  hostname: string
  /**
   * When its first process started, which in a container is later than the kernel: seconds since
   * epoch, by this machine's clock and by the site's.
   */
  booted: { here: number; there: number }
  /** By this machine's clock, seconds since epoch: when the site's uptime was 0. */
  zero: number
  /** Seconds by which this machine's clock is ahead of the site's. */
  ahead: number
  /** GNU time, or ''. */
  measure: string
  /** Options with which env resets the ignored signals of a shell's background, or ''. */
  signals: string
}

export interface RemoteSite {
  facts(): Promise<RemoteSiteFacts>
  /** Path of the supervisor, relative to `tasks`. */
  readonly wrapper: string
  /**
   * Runs a script in the folder of records, with `umask 077` and messages in English. The rendered
   * script may run more than once.
   *
   * @throws DriverError `unknown` if the site cannot be reached, `refused` if a retry is
   *   useless.
   */
  run(render: (facts: RemoteSiteFacts) => string, options?: RunOptions): Promise<ShellResult>
  /** For streams: the script with the same beginning. */
  script(render: (facts: RemoteSiteFacts) => string): Promise<string>
}

/**
 * The site has changed since the first contact: it was restarted, another of its hosts answers, or
 * its files were removed.
 */
const changedCode = 91
const missingCode = 92
const contactDeadlineMs = 120_000

const hash = createHash('sha256').update(wrapper).digest('hex').slice(0, 16)
const wrapperPath = `../bin/${hash}/wrapper`

const contactProgram = readProgram(import.meta.dirname, 'contact.sh')
/** Root may be `''`: below the account's home. */
const contact = (root: string): string =>
  `${assign({ ROOT: root, HASH: hash, WRAPPER: wrapper, MISSING: missingCode })}${contactProgram}`

const beginning = (facts: RemoteSiteFacts): string => `LC_ALL=C
export LC_ALL
umask 077
cd -- ${quote(`${facts.root}/tasks`)} 2> /dev/null || exit ${changedCode}
read -r boot < /proc/sys/kernel/random/boot_id
read -r node < /proc/sys/kernel/hostname
[ "$boot $node" = ${quote(`${facts.boot} ${facts.hostname}`)} ] && [ -s ${wrapperPath} ] || exit ${changedCode}
`

export function openRemoteSite(shell: SiteShell, root: string): RemoteSite {
  let known: Promise<RemoteSiteFacts> | undefined

  /**
   * Both clocks at the same moment, with an error of half a short round trip. The first contact may
   * have waited for a login.
   */
  const clocks = async (): Promise<{ zero: number; ahead: number }> => {
    let best = { spent: Infinity, zero: 0, ahead: 0 }
    for (let tries = 0; tries < 3 && best.spent > 20; tries++) {
      const before = Date.now()
      const { stdout } = await shell.run('read -r up rest < /proc/uptime; echo "$up $(date +%s.%N)"')
      const spent = Date.now() - before
      // busybox's date does not know %N and prints `1795283505.%N`.
      const [uptime, date] = stdout
        .toString()
        .trim()
        .split(' ')
        .map((text) => Number.parseFloat(text) || 0)
      const middle = (before + spent / 2) / 1000
      // Uptime comes in steps of 10 ms, rounded down.
      if (spent < best.spent)
        best = { spent, zero: middle - (uptime ?? 0) - 0.005, ahead: middle - (date ?? 0) }
    }
    return best
  }

  /** The text for a full disk: a shell's own `printf` reports only "I/O error". */
  const room = async (): Promise<string> => {
    const { stdout } = await shell.run(
      `df -Pk -- ${root === '' ? '"$HOME"' : quote(root)} 2> /dev/null | tail -n 1`,
    )
    const [, blocks = '', , free = '', , mount = ''] = stdout.toString().trim().split(/\s+/)
    return Number(free) < 64 && blocks !== ''
      ? ` (No space left on device: ${free} of ${blocks} KiB are free at ${mount})`
      : ''
  }

  const meet = async (): Promise<RemoteSiteFacts> => {
    const { code, stdout, stderr } = await shell.run(contact(root), { deadlineMs: contactDeadlineMs })
    const lines = stdout.toString().split('\n')
    const value = (word: string): string =>
      lines.find((line) => line.startsWith(`${word} `))?.slice(word.length + 1) ?? ''
    const lacking = lines.filter((line) => line.startsWith('lacks ')).map((line) => line.slice(6))
    if (lacking.length > 0)
      throw new DriverError('refused', `the site lacks ${lacking.join(', ')}; install what is missing there`)
    if (code !== 0)
      throw new DriverError(
        'infrastructure',
        `cannot prepare the work directory of the site: ${errorTextOf(stderr)}${await room()}`,
      )
    const { zero, ahead } = await clocks()
    const here = zero + Number(value('first') || 0) / 100
    return {
      root: value('root'),
      boot: value('boot'),
      hostname: value('hostname'),
      booted: { here, there: here - ahead },
      zero,
      ahead,
      measure: value('measure'),
      signals: value('signals'),
    }
  }

  const facts = (): Promise<RemoteSiteFacts> => {
    if (known === undefined) {
      const asked = meet()
      known = asked
      asked.catch(() => {
        if (known === asked) known = undefined
      })
    }
    return known
  }

  return {
    wrapper: wrapperPath,
    facts: () => facts().catch((error: unknown) => Promise.reject(asDriverError(error))),
    script: async (render) => {
      const now = await facts()
      return beginning(now) + render(now)
    },
    async run(render, options) {
      try {
        for (let tries = 0; ; tries++) {
          const asked = facts()
          const now = await asked
          const result = await shell.run(beginning(now) + render(now), options)
          if (result.code !== changedCode) return result
          if (known === asked) known = undefined
          if (tries === 2)
            throw new DriverError(
              'infrastructure',
              `the work directory of the site, ${now.root}, does not stay there`,
            )
        }
      } catch (error) {
        throw asDriverError(error)
      }
    },
  }
}
