import { existsSync, readFileSync } from 'node:fs'
import { quote, quoteAll } from '../src/shell/quote.ts'
import { until } from './ground.ts'
import type { Host } from './hosts.ts'

/** A program that runs on a host until it is killed or the host goes down. */
export interface Daemon {
  /** Kills it without a warning; resolves when it is gone. Harmless when it has ended. */
  kill(): Promise<void>
  /**
   * Waits until `ask` returns true. @throws Error with the end of its log when it ended before, or
   * after two minutes
   */
  ready(ask: () => Promise<boolean>): Promise<void>
}

/**
 * Settings for servers in Go. Memory is plentiful and processor time is scarce, so they collect
 * garbage less often, and they do not wake the other processor for short work. Over four pairs of
 * runs of the driver's tests the processors took 354 s instead of 380.
 */
export const thriftyServer: Readonly<Record<string, string>> = { GOGC: '400', GOMAXPROCS: '1' }

/**
 * Starts a program (searched on the host's PATH unless it is a path) and appends its output to the
 * file.
 */
export const startDaemon = async (
  host: Host,
  logFile: string,
  command: readonly [string, ...string[]],
  environment: Readonly<Record<string, string>> = {},
): Promise<Daemon> => {
  const words = Object.entries(environment).map(([name, value]) => `${name}=${quote(value)} `)
  const { stdout } = await host.run(
    `${words.join('')}setsid ${quoteAll(command)} </dev/null >>${quote(logFile)} 2>&1 & echo $!`,
  )
  const pid = Number(stdout)
  const name = command[0].replace(/^.*\//, '')
  const lastWords = (): string => (existsSync(logFile) ? readFileSync(logFile, 'utf8').slice(-3000) : '')
  const lives = async (): Promise<boolean> =>
    host.isUp() && (await host.run(`kill -0 ${pid}`, 'root', { mayFail: true })).code === 0
  return {
    kill: async () => {
      if (host.isUp())
        await host.run(`kill -KILL ${pid} 2>/dev/null; while kill -0 ${pid} 2>/dev/null; do sleep 0.02; done`)
    },
    ready: async (ask) => {
      let asked = 0
      await until(
        `${name} of ${host.name} is ready`,
        async () => {
          if (await ask()) return true
          // A check of the process costs more than a call of `ask`, so only one in 40 includes it:
          // about once a second.
          if (++asked % 40 === 0 && !(await lives()))
            throw new Error(`${name} of ${host.name} has ended:\n${lastWords()}`)
          return false
        },
        lastWords,
      )
    },
  }
}
