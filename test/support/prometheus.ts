import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { freePort } from '../../src/embedded/ports.ts'
import { runFolder } from './run-folder.ts'

const rules = join(import.meta.dirname, '../../deploy/prometheus/rules.yml')

interface Series {
  metric: Record<string, string>
  value: [at: number, value: string]
}

const gone = (child: ChildProcess): Promise<void> =>
  child.exitCode !== null || child.signalCode !== null
    ? Promise.resolve()
    : new Promise((resolve) => child.once('exit', () => resolve()))

/**
 * Debian's Prometheus with the rules of `deploy`. It scrapes a target and evaluates the rules each
 * second.
 */
export const startPrometheus = async (target: string) => {
  const folder = mkdtempSync(join(runFolder(), 'orrery-prometheus-'))
  const config = join(folder, 'prometheus.yml')
  writeFileSync(
    config,
    `global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [${JSON.stringify(rules)}]
scrape_configs: [{ job_name: orrery, static_configs: [{ targets: [${JSON.stringify(target)}] }] }]
`,
  )
  const port = await freePort()
  const address = `127.0.0.1:${String(port)}`
  const child = spawn(
    '/usr/bin/prometheus',
    [
      `--config.file=${config}`,
      `--storage.tsdb.path=${join(folder, 'data')}`,
      `--web.listen-address=${address}`,
      '--log.level=error',
    ],
    { stdio: ['ignore', 'inherit', 'inherit'] },
  )
  const ask = async (path: string): Promise<any> => {
    const answer = await fetch(`http://${address}/api/v1/${path}`)
    const body = (await answer.json()) as { status: string; error?: string; data: unknown }
    if (body.status !== 'success')
      throw new Error(`Prometheus answers ${path} with ${body.error ?? body.status}`)
    return body.data
  }
  return {
    /** The present series of a query. @throws Error where Prometheus refuses the query */
    query: async (text: string): Promise<Series[]> =>
      ((await ask(`query?query=${encodeURIComponent(text)}`)) as { result: Series[] }).result,
    /** Names and labels of the alerts that fire. */
    firing: async (): Promise<Record<string, string>[]> =>
      ((await ask('alerts')) as { alerts: { state: string; labels: Record<string, string> }[] }).alerts
        .filter(({ state }) => state === 'firing')
        .map(({ labels }) => labels),
    async close(): Promise<void> {
      child.kill('SIGTERM')
      await gone(child)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

export type Prometheus = Awaited<ReturnType<typeof startPrometheus>>
