import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { newFolder } from './folder.ts'

/**
 * The service's own program with embedded servers and durable writes, as users run it, on its own
 * data folder.
 */
export const startDaemon = async (environment: Record<string, string> = {}) => {
  const folder = newFolder('daemon-')
  const dataDir = join(folder, 'data')
  const boot = () => {
    const child = spawn(process.execPath, [join(import.meta.dirname, '../src/main.ts')], {
      env: {
        ...process.env,
        SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
        SERVICE_DATA_DIR: dataDir,
        SERVICE_LOG_LEVEL: 'error',
        ...environment,
      },
      stdio: ['ignore', 'inherit', 'inherit'],
    })
    return child
  }
  let child = boot()
  // A failing benchmark kills its daemon, and the daemon's servers end with it.
  process.once('exit', () => child.kill('SIGKILL'))
  const readyFile = join(dataDir, 'ready.json')
  interface Ready {
    baseUrl: string
    adminUrl: string
    databaseUrl: string
    temporalAddress: string
    pids: { daemon: number; workers: number[]; postgres: number; temporal: number }
  }
  const ready = async (): Promise<Ready> => {
    for (;;) {
      if (child.exitCode !== null || child.signalCode !== null)
        throw new Error(`the daemon ended with ${child.signalCode ?? String(child.exitCode)}`)
      if (existsSync(readyFile)) {
        const facts = JSON.parse(readFileSync(readyFile, 'utf8')) as Ready
        if (facts.pids.daemon === child.pid) return facts
      }
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
  let facts = await ready()
  const end = async (signal: 'SIGTERM' | 'SIGKILL'): Promise<void> => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, 'exit')
    child.kill(signal)
    await ended
  }
  /** Resolves once every server listens again. */
  const startAgain = async (): Promise<void> => {
    child = boot()
    facts = await ready()
  }
  const call = async (
    method: string,
    path: string,
    body?: unknown,
  ): Promise<{ status: number; body: any }> => {
    const answer = await fetch(facts.baseUrl + path, {
      method,
      ...(body === undefined
        ? {}
        : {
            headers: { 'content-type': typeof body === 'string' ? 'application/yaml' : 'application/json' },
            body: typeof body === 'string' ? body : JSON.stringify(body),
          }),
    })
    const text = await answer.text()
    return { status: answer.status, body: text === '' ? undefined : JSON.parse(text) }
  }
  const ok = async (method: string, path: string, body?: unknown): Promise<any> => {
    const answer = await call(method, path, body)
    if (answer.status >= 300)
      throw new Error(
        `${method} ${path} answered ${String(answer.status)}: ${JSON.stringify(answer.body).slice(0, 2_000)}`,
      )
    return answer.body
  }
  return {
    dataDir,
    facts: () => facts,
    /** The URL with its password, for direct reads of the records. */
    databaseUrl: (): string => {
      const url = new URL(facts.databaseUrl)
      url.password = readFileSync(join(dataDir, 'postgresql.password'), 'utf8').trim()
      return url.href
    },
    call,
    ok,
    end,
    startAgain,
    /** Ends the daemon with SIGKILL and starts it again on the same folder. */
    async killAndRestart(): Promise<void> {
      await end('SIGKILL')
      await startAgain()
    },
    async stop(): Promise<void> {
      await end('SIGTERM')
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

export type Daemon = Awaited<ReturnType<typeof startDaemon>>

/** An environment with one resource of `lanes` cores under each id, bound to one runtime. */
export const environmentOf = (
  id: string,
  runtime: Record<string, unknown>,
  resources: Record<string, unknown>[],
) => ({
  environment: { id, name: id },
  version: { id: `${id}-v1`, version: 1, status: 'published' },
  runtimes: [{ id: `${id}-runtime`, name: 'runtime', mode: 'execution', driver: 'local', ...runtime }],
  resources: resources.map((resource) => ({
    providerId: resource['id'],
    name: resource['id'],
    type: 'local_machine',
    executionTarget: 'direct',
    computeSpeedup: 1,
    schedulable: true,
    memoryBytes: 2 ** 40,
    ...resource,
  })),
  resourceRuntimeBindings: resources.map((resource) => ({
    resourceId: resource['id'],
    runtimeId: `${id}-runtime`,
    enabled: true,
  })),
})

/**
 * Polls a run by its light list of counts until it is over. Returns its record and the distinct
 * counts seen.
 */
export const watchRun = async (
  daemon: Pick<Daemon, 'ok'>,
  runId: string,
  everyMs = 5,
): Promise<{ run: any; counts: Set<number> }> => {
  const counts = new Set<number>()
  for (;;) {
    const page = await daemon.ok('GET', `/execution-runs/?pageSize=1`)
    const run =
      page.items.map((item: any) => item.run).find((candidate: any) => candidate.id === runId) ??
      (await daemon.ok('GET', `/execution-runs/${runId}/`)).run
    counts.add(run.completedActivityCount)
    if (['completed', 'failed', 'cancelled'].includes(run.status)) return { run, counts }
    // The interval shrinks towards the end, so that the poller's pause does not distort the
    // measurement.
    const pause = run.completedActivityCount > 0.97 * run.activityCount ? Math.min(everyMs, 5) : everyMs
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}
