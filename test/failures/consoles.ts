import { expect } from '@jest/globals'
import { attachTo, openTerminal } from '../support/console-streams.ts'
import { until } from './programs.ts'
import type { Programs } from './rounds.ts'

/** A line of 64 bytes with its end, at its number in the output. */
export const lineOf = (number: number): string => `<${String(number).padStart(60, '0')}>`
/** 10 MiB of numbered lines. */
export const tenMiB = 163_840
/** Keys that let a terminal show numbered lines, 10 MiB over three seconds, and `all-done`. */
export const numbered = (count: number): string =>
  `stty -echo; PS1=; awk 'BEGIN { for (i = 1; i <= ${String(count)}; i++) { printf "<%060d>\\n", i; ` +
  'if (i % 1000 == 0) { fflush(); system("sleep 0.02") } } print "all" "-done" }\'\n'
/** The numbers of the lines that a log holds. */
export const numbersIn = (log: string): number[] =>
  [...log.matchAll(/<(\d{60})>\n/g)].map(([, digits]) => Number(digits))
/** The place of the first line that is not in its order; -1 where none is. */
export const gapIn = (numbers: readonly number[]): number =>
  numbers.findIndex((number, i) => number !== i + 1)

/** The terminals of a daemon that is killed and started again. */
export const openConsoles = (programs: Programs) => {
  const sessionOf = (id: string) => programs.get(`/console-sessions/${id}/`)
  const open = (resourceId: string): Promise<string> => openTerminal(programs, resourceId)
  const attach = (id: string) =>
    until('a connection to the terminal', 120, () =>
      attachTo({ baseUrl: programs.baseUrl() }, id).catch(() => undefined),
    )
  const logOf = async (id: string, search = ''): Promise<string> =>
    (await fetch(`${programs.baseUrl()}/console-sessions/${id}/log/${search}`)).text()
  const ended = (id: string) =>
    until('the end of the session', 200, async () => {
      const session = await sessionOf(id).catch(() => undefined)
      return session?.finishedAt === undefined ? undefined : session
    })
  const restart = async (): Promise<void> => {
    await programs.killDaemon()
    await programs.startDaemon()
  }
  /** Sends 10 MiB through a terminal, hits in the middle, and reads the rest with another connection. */
  const hitInTheMiddle = async (resourceId: string, blow: () => Promise<unknown>): Promise<void> => {
    const id = await open(resourceId)
    const first = await attach(id)
    first.ws.send(numbered(tenMiB))
    await until('the first output', 120, () => first.text().includes(lineOf(2_000)))
    expect(first.text()).not.toContain('all-done')
    await blow()
    first.ws.terminate()
    let again = await attach(id)
    await until('the last output', 120, async () => {
      // A connection of the last moment before the service notices the blow is closed, too.
      if (again.ws.readyState !== again.ws.OPEN) again = await attach(id)
      return again.text().includes('all-done')
    })
    again.ws.send('echo again-$((1+1)); exit\n')
    await again.closed
    expect(await ended(id)).toMatchObject({ status: 'closed' })
    const log = await logOf(id)
    const numbers = numbersIn(log)
    expect([numbers.length, gapIn(numbers)]).toEqual([tenMiB, -1])
    expect(log).toContain('again-2')
  }
  return { sessionOf, open, attach, logOf, ended, restart, hitInTheMiddle }
}
