import { existsSync, readFileSync } from 'node:fs'
import { quote, quoteAll } from '../src/drivers/quote.ts'
import { until } from './ground.ts'
import type { Host } from './hosts.ts'

/** A program that runs on a host until it is killed or the host goes down. */
export interface Daemon {
  /** Resolves when it is gone, without having been warned. Harmless when it has ended. */
  kill(): Promise<void>
  /** Waits until `ask` says yes. @throws Error with its last words when it ended before, or after two minutes */
  ready(ask: () => Promise<boolean>): Promise<void>
}

/**
 * For servers in Go: memory is there to spare, processor time is not, so they look for garbage less often, and none wakes the other processor
 * for work that is done before it comes: over four pairs of runs of the driver's tests 354 s of the processors instead of 380.
 */
export const thriftyServer: Readonly<Record<string, string>> = { GOGC: '400', GOMAXPROCS: '1' }

/** Starts a program (searched on the host's PATH when it is no path) with its output appended to the file. */
export const startDaemon = async (
  host: Host,
  logFile: string,
  command: readonly [string, ...string[]],
  environment: Readonly<Record<string, string>> = {},
): Promise<Daemon> => {
  const words = Object.entries(environment).map(([name, value]) => `${name}=${quote(value)} `)
  const { stdout } = await host.run(`${words.join('')}setsid ${quoteAll(command)} </dev/null >>${quote(logFile)} 2>&1 & echo $!`)
  const pid = Number(stdout)
  const name = command[0].replace(/^.*\//, '')
  const lastWords = (): string => (existsSync(logFile) ? readFileSync(logFile, 'utf8').slice(-3000) : '')
  const lives = async (): Promise<boolean> => host.isUp() && (await host.run(`kill -0 ${pid}`, 'root', { mayFail: true })).code === 0
  return {
    kill: async () => {
      if (host.isUp()) await host.run(`kill -KILL ${pid} 2>/dev/null; while kill -0 ${pid} 2>/dev/null; do sleep 0.02; done`)
    },
    ready: async (ask) => {
      let asked = 0
      await until(
        `${name} of ${host.name} is ready`,
        async () => {
          if (await ask()) return true
          // A look at the process costs more than a question, so only one in 40: about once a second.
          if (++asked % 40 === 0 && !(await lives())) throw new Error(`${name} of ${host.name} has ended:\n${lastWords()}`)
          return false
        },
        lastWords,
      )
    },
  }
}
