import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { Db } from '../src/db/sql.ts'
import { readEnvironment } from '../src/domains/environments/store.ts'
import { readRunDetail } from '../src/domains/execution-runs/store.ts'
import { chainDag, montageDag } from './dag.ts'
import { startDaemon } from './daemon.ts'
import { plan, timedRun } from './planned-run.ts'
import type { Benchmark, Goal, Report } from './report.ts'
import { interleaved, median, medianRatio } from './rounds.ts'

const connections = 16
const fullSeconds = 2

/** The statement that a store function runs. */
const statementOf = async (read: (db: Db) => Promise<unknown>): Promise<string> => {
  let seen = ''
  const recorder = {
    prepared: async (_name: string, text: string) => {
      seen = text
      return []
    },
  }
  await read(recorder as unknown as Db)
  if (seen === '')
    throw new Error('the store function runs no named statement any more; take its text in another way')
  return seen
}

/**
 * Starts the plain server in its own process; resolves with its address. A long run names the paths
 * of its cut lists, which no statement makes; the plain server gets them by the run's id.
 */
const startPlain = async (databaseUrl: string, links: Record<string, unknown>) => {
  const statements = {
    links,
    run: await statementOf((db) => readRunDetail(db, '', false)),
    environment: await statementOf((db) => readEnvironment(db, '')),
  }
  const child = spawn(
    process.execPath,
    [join(import.meta.dirname, 'reads/plain-server.ts'), databaseUrl, JSON.stringify(statements)],
    {
      env: { ...process.env, NODE_ENV: 'production' },
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  )
  const [port] = (await once(child.stdout, 'data')) as [Buffer]
  return {
    url: `http://127.0.0.1:${port.toString().trim()}`,
    async stop(): Promise<void> {
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      await ended
    },
  }
}

const load = async (url: string, seconds: number): Promise<number> => {
  const { stdout } = await promisify(execFile)(process.execPath, [
    join(import.meta.dirname, 'reads/load.ts'),
    url,
    String(connections),
    String(seconds),
  ])
  return (JSON.parse(stdout) as { perSecond: number }).perSecond
}

const textOf = async (url: string): Promise<string> => {
  const answer = await fetch(url)
  const text = await answer.text()
  if (answer.status !== 200)
    throw new Error(`${url} answered ${String(answer.status)}: ${text.slice(0, 300)}`)
  return text
}

export const reads: Benchmark = {
  about:
    'GET of one run and of one environment through the whole stack, requests/s against a plain ' +
    'Express 5 + pg handler with the same statement',
  async run({ rounds, tiny }) {
    const seconds = tiny ? 0.2 : fullSeconds
    const { dag, origin } = montageDag(tiny)
    const daemon = await startDaemon()
    try {
      const none = { configuration: { launch: 'none' } }
      const command = () => ({ entrypoint: 'true' })
      await timedRun(
        daemon,
        await plan(daemon, { name: 'small', dag: chainDag(10), command, runtime: none, lanes: 1 }),
        'small',
      )
      await timedRun(
        daemon,
        await plan(daemon, { name: 'montage', dag, command, runtime: none, lanes: 256 }),
        'large',
      )
      const linksOf = async (run: string): Promise<unknown> => {
        const document = await textOf(`${daemon.facts().baseUrl}/execution-runs/${run}/`)
        return (JSON.parse(document) as { links?: unknown }).links
      }
      const links = { small: await linksOf('small'), large: await linksOf('large') }
      const plain = await startPlain(daemon.databaseUrl(), links)
      try {
        const documents = {
          'environment, 1 resource': '/environments/small/',
          'run, 10 activities': '/execution-runs/small/',
          [`run, ${Object.keys(dag).length.toLocaleString('en')} activities`]: '/execution-runs/large/',
        }
        const sides: Report['sides'] = []
        const goals: Goal[] = []
        const notes: string[] = []
        for (const [what, path] of Object.entries(documents)) {
          const urls = {
            orrery: daemon.facts().baseUrl + path,
            text: `${plain.url}/text${path}`,
            object: `${plain.url}/object${path}`,
          }
          const [ours, text, object] = await Promise.all([
            textOf(urls.orrery),
            textOf(urls.text),
            textOf(urls.object),
          ])
          if (ours !== text || JSON.stringify(JSON.parse(ours)) !== object)
            throw new Error(`${path}: the sides answer different documents`)
          const { cold, warm } = await interleaved(rounds, {
            orrery: () => load(urls.orrery, seconds),
            text: () => load(urls.text, seconds),
            object: () => load(urls.object, seconds),
          })
          sides.push(
            { name: `${what}: Orrery`, unit: 'requests/s', cold: cold.orrery, warm: warm.orrery },
            {
              name: `${what}: Express, text passed on`,
              unit: 'requests/s',
              cold: cold.text,
              warm: warm.text,
            },
            {
              name: `${what}: Express, res.json of the object`,
              unit: 'requests/s',
              cold: cold.object,
              warm: warm.object,
            },
          )
          goals.push({
            what: `${what}, against res.json`,
            unit: '×',
            measured: medianRatio(warm.orrery, warm.object),
            sense: 'least',
            goal: 2,
          })
          goals.push({
            what: `${what}, against text passed on`,
            unit: '×',
            measured: medianRatio(warm.orrery, warm.text),
            sense: 'least',
            goal: 2,
          })
          notes.push(
            `${what}: ${String(Buffer.byteLength(ours))} bytes, the same from all sides; ` +
              `${String(Math.round(median(warm.orrery)))} requests/s`,
          )
        }
        notes.push(
          `${String(connections)} keep-alive connections from a process of their own for ` +
            `${String(seconds)} s; each side one process with 20 connections to the same PostgreSQL; ` +
            'Express with NODE_ENV=production',
          origin,
        )
        return { sides, goals, notes, versions: {} }
      } finally {
        await plain.stop()
      }
    } finally {
      await daemon.stop()
    }
  },
}
